"""The records of updates: in the file at once, or together where updates are faster than the disk should be asked."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sonde.records.append import RecordFile
from sonde.records.layout import STEPS, RunLayout
from sonde.records.steps import read_steps
from sonde.train import reporting
from sonde.train.reporting import Reporter, Where
from sonde.train.step import StepResult


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[Reporter]:
    with RecordFile(RunLayout(tmp_path).record_file(STEPS, 0)) as file:
        yield Reporter(lambda *_: None, interval=1000, steps=file)


def update(reporter: Reporter, *numbers: int) -> None:
    for number in numbers:
        result = StepResult(loss=float(number), weight=1.0, grad_norm=1.0)
        reporter.update(Where(1, number, 0.1), result, data_seconds=0.0, batch=None)


def recorded(run: Path) -> list[int]:
    return list(read_steps(run).by_number)


def test_slow_updates_are_written_one_by_one(
    reporter: Reporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "_WRITE_SECONDS", 0.0)
    for number in (1, 2, 3):
        update(reporter, number)
        assert recorded(tmp_path) == list(range(1, number + 1))


def test_fast_updates_are_written_together_and_none_is_left_out(
    reporter: Reporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "_WRITE_SECONDS", 3600.0)
    reporter.write_steps()
    reporter._written = time.monotonic()
    update(reporter, 1, 2, 3)
    assert recorded(tmp_path) == []
    reporter.write_steps()
    reporter.write_steps()
    assert recorded(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("moment", ["evaluation", "error"])
def test_updates_are_written_before_an_evaluation_is_logged_and_when_something_raises(
    reporter: Reporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(reporting, "_WRITE_SECONDS", 3600.0)
    reporter._written = time.monotonic()

    def train() -> Any:
        with reporter.epoch():
            update(reporter, 1, 2)
            if moment == "error":
                raise ValueError("planted")
            reporter.evaluation(Where(1, 2, 0.1), {"loss": 1.0}, 1.0)
            return recorded(tmp_path)

    if moment == "error":
        with pytest.raises(ValueError, match="planted"):
            train()
    else:
        assert train() == [1, 2]
    assert recorded(tmp_path) == [1, 2]
