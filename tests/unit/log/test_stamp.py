import datetime
import time

import pytest

from sonde.log.logger import Stamp

NANO = 1_000_000_000


def test_a_record_has_its_fields_in_order() -> None:
    record = Stamp(3).log_record((0, 1), {"loss": 1.0})
    assert list(record) == ["timestamp", "elapsedtime", "datetime", "type", "step", "rank", "data"]
    assert (record["type"], record["step"], record["rank"], record["data"]) == (
        "LOG",
        (0, 1),
        3,
        {"loss": 1.0},
    )
    note = Stamp(3).note("INFO", {"data": "x"})
    assert list(note) == ["timestamp", "elapsedtime", "datetime", "type", "rank", "data"]


def test_the_three_times_are_of_one_moment() -> None:
    stamp = Stamp(0)
    first = stamp.log_record(1, {})
    second = stamp.note("INFO", {})
    for record in (first, second):
        local = datetime.datetime.fromisoformat(record["datetime"]).timestamp()
        assert local == pytest.approx(record["timestamp"], abs=2e-6)
        assert abs(record["timestamp"] - time.time()) < 60
        assert 0 <= record["elapsedtime"] < 60
    starts = [record["timestamp"] - record["elapsedtime"] for record in (first, second)]
    assert starts[0] == pytest.approx(starts[1], abs=2e-6)


@pytest.mark.parametrize(
    "seconds", [1_700_000_000.0, 1_700_000_000.999999, 1_700_000_001.5, 3.25, 4e9]
)
def test_time_is_told_to_the_microsecond_from_any_second_to_any_other(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    stamp = Stamp(0)
    start = stamp.log_record(0, {})
    nano = round(seconds * 1e6) * 1000
    monkeypatch.setattr("sonde.log.logger.time_ns", lambda: nano)
    record = stamp.log_record(0, {})
    assert record["timestamp"] == pytest.approx(seconds, abs=1e-6)
    assert datetime.datetime.fromisoformat(record["datetime"]).timestamp() == pytest.approx(
        seconds, abs=1e-6
    )
    assert len(record["datetime"]) == len("2026-11-15 19:46:47.434305+00:00")
    passed = record["timestamp"] - start["timestamp"]
    assert record["elapsedtime"] - start["elapsedtime"] == pytest.approx(passed, abs=1e-5)


@pytest.mark.parametrize(
    ("zone", "suffix"),
    [("UTC", "+00:00"), ("Asia/Kolkata", "+05:30"), ("America/Halifax", "-04:00")],
)
def test_local_time_carries_its_zone(
    monkeypatch: pytest.MonkeyPatch, zone: str, suffix: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        monkeypatch.setattr("sonde.log.logger.time_ns", lambda: 1_700_000_000 * NANO + NANO // 4)
        local = Stamp(0).log_record(0, {})["datetime"]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert local.endswith(".250000" + suffix)
    assert datetime.datetime.fromisoformat(local).timestamp() == 1_700_000_000.25
