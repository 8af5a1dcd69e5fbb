import datetime
import time

import pytest

from sonde.log.clock import Clock


def test_the_three_times_are_of_one_moment() -> None:
    clock = Clock()
    first, second = clock.read(), clock.read()
    for timestamp, elapsedtime, local in (first, second):
        assert datetime.datetime.fromisoformat(local).timestamp() == pytest.approx(timestamp, abs=2e-6)
        assert abs(timestamp - time.time()) < 60
        assert 0 <= elapsedtime < 60
    assert second[0] - second[1] == pytest.approx(first[0] - first[1], abs=2e-6)


@pytest.mark.parametrize("now", [1_700_000_000.0, 1_700_000_000.000001, 1_700_000_000.999999, 1_700_000_001.5, 3.25])
def test_time_is_told_to_the_microsecond_over_seconds(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "time", lambda: now)
    timestamp, _, local = clock.read()
    assert timestamp == pytest.approx(now, abs=1.1e-6)
    assert datetime.datetime.fromisoformat(local).timestamp() == pytest.approx(now, abs=1.1e-6)
    assert len(local) == len("2026-11-15 19:46:47.434305+00:00")


@pytest.mark.parametrize(
    ("zone", "suffix"), [("UTC", "+00:00"), ("Asia/Kolkata", "+05:30"), ("America/Halifax", "-04:00")]
)
def test_local_time_carries_its_zone(monkeypatch: pytest.MonkeyPatch, zone: str, suffix: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        monkeypatch.setattr(time, "time", lambda: 1_700_000_000.25)
        local = Clock().read()[2]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert local.endswith(".250000" + suffix)
    assert datetime.datetime.fromisoformat(local).timestamp() == 1_700_000_000.25
