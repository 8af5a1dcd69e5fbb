import argparse
import atexit
import dataclasses
import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonde.errors import RunError, SettingError
from sonde.log import Backend, JSONStreamBackend, Logger, StdOutBackend, Verbosity, read
from sonde.log.backend import Record
from sonde.records import disk
from sonde.records.append import RecordFile


class Kept(Backend):
    """Keeps what it is given; may be made to fail."""

    ALL_RANKS = True

    def __init__(self, verbosity: int = Verbosity.VERBOSE, **options: Any) -> None:
        super().__init__(verbosity, **options)
        self.records: list[Record] = []
        self.calls: list[str] = []
        self.error: Exception | None = None

    def open(self) -> None:
        self.calls.append("open")

    def write(self, record: Record) -> None:
        if self.error:
            raise self.error
        self.records.append(record)

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


class Awkward:
    def __radd__(self, other: object) -> object:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        return "awkward"


@dataclasses.dataclass
class Settings:
    lr: float = 0.1


def test_a_record_has_the_documented_fields_in_order(tmp_path: Path) -> None:
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json")], rank=2) as logger:
        logger.log(step=[0, 1], data={"loss": 0.5})
        logger.metadata("loss", {"unit": "s"})
        logger.info("text")
    lines = [json.loads(line) for line in (tmp_path / "a.json").read_text().splitlines()]
    times = ["timestamp", "elapsedtime", "datetime", "type"]
    assert [list(line) for line in lines] == [
        [*times, "step", "rank", "data", "_crc"],
        [*times, "rank", "metric", "metadata", "_crc"],
        [*times, "rank", "data", "_crc"],
    ]
    assert all(
        isinstance(line["timestamp"], float) and isinstance(line["elapsedtime"], float)
        for line in lines
    )


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"a": 1.5, "b": 2, "c": True},
        {"a": float("nan")},
        {"a": float("inf"), "b": -float("inf")},
        {"a": 2**80, "b": 1.0},
        {"a": 2**2000, "b": 1.0},
        {"größe": 1.0, "键": 2.0, "\ud800": 3.0},
        {"$a": 1.0, "b$": 2.0},
        {"a": "NaN", "b": None, "c": [1, [2, None]], "d": {"e": "f"}},
        {1: 2.0, (1, 2): 3.0},
        {"a": "x" * 10_000},
    ],
    ids=repr,
)
@pytest.mark.parametrize("step", [3, [0, 1], "name", None, 2**70])
def test_values_and_steps_read_back_as_given(
    tmp_path: Path, data: dict[Any, Any], step: Any
) -> None:
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json")]) as logger:
        logger.log(step, data)
    (record,) = read(tmp_path / "a.json")
    np.testing.assert_equal(record.data, data)
    assert record.step == step


def test_whatever_is_logged_never_raises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    kept = Kept()
    with Logger(
        [kept, StdOutBackend(), JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json")]
    ) as logger:
        for data in (
            Awkward(),
            {"x": Awkward()},
            loop,
            None,
            3,
            "text",
            [1, 2],
            {"x": object()},
            {"x": b"\xff"},
        ):
            logger.log(1, data)
            logger.log(Awkward(), data)
            logger.info(data)
            logger.metadata("x", data)
    assert len(kept.records) == 36
    assert len(read(tmp_path / "a.json", keep_superseded=True)) == 36
    assert len(capsys.readouterr().out.splitlines()) == 27


def test_info_takes_namespaces_dataclasses_dicts_and_strings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Logger(
        [StdOutBackend(), JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json")]
    ) as logger:
        for data in (argparse.Namespace(lr=0.1), Settings(), {"lr": 0.1}, "start training ..."):
            logger.info(data=data)
    assert [record.data for record in read(tmp_path / "a.json")] == [{"lr": 0.1}] * 3 + [
        "start training ..."
    ]
    assert (
        capsys.readouterr().out
        == "Namespace(lr=0.1)\nSettings(lr=0.1)\n{'lr': 0.1}\nstart training ...\n"
    )


@pytest.mark.parametrize(
    ("level", "steps"), [(Verbosity.OFF, []), (Verbosity.DEFAULT, [0]), (Verbosity.VERBOSE, [0, 1])]
)
def test_verbosity_filters_each_backend(level: Verbosity, steps: list[int]) -> None:
    kept = Kept(level)
    with Logger([kept]) as logger:
        logger.log(0, {"a": 1.0})
        logger.log(1, {"a": 1.0}, verbosity=Verbosity.VERBOSE)
        logger.metadata("a", {})
        logger.info("a")
    assert [record["step"] for record in kept.records if record["type"] == "LOG"] == steps
    assert [record["type"] for record in kept.records[len(steps) :]] == (
        ["METADATA", "INFO"] if steps else []
    )
    assert ("open" in kept.calls) == bool(steps)


def test_a_broken_backend_is_counted_said_once_and_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Kept()
    whole = Kept()
    broken.error = OSError("gone")
    logger = Logger([broken, whole])
    with caplog.at_level(logging.WARNING, "sonde"):
        for step in range(3):
            logger.log(step, {"loss": 1.0})
        logger.log(3, {"note": "x"})
        logger.info("y")
    logger.close()
    assert broken.num_lost == logger.num_lost == 5
    assert len(whole.records) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "Kept loses records: OSError: gone. Training goes on"
    ]


def test_a_backend_that_cannot_open_flush_or_close_does_not_raise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Sick(Kept):
        def open(self) -> None:
            raise OSError("open")

        def flush(self) -> None:
            raise OSError("flush")

        def close(self) -> None:
            raise OSError("close")

    with caplog.at_level(logging.WARNING, "sonde"), Logger([Sick()]) as logger:
        logger.log(1, {"a": 1.0})
        logger.flush()
    assert len(caplog.records) == 1


def test_a_full_disk_stops_nobody_and_the_gap_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.records.append._RETRY_SECONDS", 0.0)
    path = tmp_path / "a.json"
    logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, path)])
    logger.log(0, {"loss": 1.0})

    def full(descriptor: int, line: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        logger.log(1, {"loss": 1.0})
        logger.log(2, {"loss": "text"})
    logger.log(3, {"loss": 1.0})
    logger.close()
    assert logger.num_lost == 2
    log = read(path)
    assert [record.step for record in log] == [0, 3]
    assert log.num_lost == 2


def test_a_disk_that_fails_for_good_loses_and_counts(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "a.json")
    logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, file)])
    file.close()
    logger.log(1, {"loss": 1.0})
    logger.log(2, {"loss": None})
    assert logger.num_lost == 2
    logger.close()


def test_opening_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot write records"):
        JSONStreamBackend(Verbosity.VERBOSE, tmp_path)


def test_only_rank_zero_prints_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        with Logger([StdOutBackend()], rank=rank) as logger:
            logger.log(rank, {"loss": 1.0})
    assert capsys.readouterr().out.count("loss") == 1
    with Logger([StdOutBackend(all_ranks=True)], rank=2) as logger:
        logger.log(2, {"loss": 1.0})
    assert "Iteration: 2" in capsys.readouterr().out


def test_rank_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    kept = Kept()
    with Logger([kept]) as logger:
        logger.log(1, {"a": 1.0})
    assert kept.records[0]["rank"] == 5


def test_throttling_is_per_backend_and_hides_nothing() -> None:
    every = Kept()
    fifth = Kept(every_n=5)
    logger = Logger([every, fifth])
    logger.metadata("loss", {})
    for step in range(12):
        logger.log(step, {"loss": float(step)})
    logger.log(12, {"loss": None})
    logger.close()
    assert len(every.records) == 14
    assert [(r["type"], r.get("step"), r.get("data")) for r in fifth.records] == [
        ("METADATA", None, None),
        ("LOG", 4, {"loss": 2.0}),
        ("LOG", 9, {"loss": 7.0}),
        ("LOG", 12, {"loss": None}),
    ]


def test_close_flushes_closes_and_forgets_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    monkeypatch.setattr(atexit, "unregister", registered.remove)
    kept = Kept()
    logger = Logger([kept])
    assert registered == [logger.close]
    logger.close()
    assert registered == []
    assert kept.calls == ["open", "flush", "close"]


def test_backends_must_be_backends() -> None:
    with pytest.raises(SettingError, match="no backend"):
        Logger(["stdout"])
    assert Logger(Kept()).backends


def test_an_unknown_verbosity_is_refused() -> None:
    with pytest.raises(SettingError, match="7 is no verbosity"):
        StdOutBackend(7)
