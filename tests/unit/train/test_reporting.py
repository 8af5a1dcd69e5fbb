"""The records of updates: in the file at once, or together where updates are faster than the disk
should be asked.
"""

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console
from tiny_training import Numbers, Regression
from torch import Tensor

from sonde import metrics
from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context, ContextValues
from sonde.callbacks.progress import ProgressCallback
from sonde.log.logger import Logger
from sonde.log.reading import read
from sonde.records.append import RecordFile
from sonde.records.journal import read_steps
from sonde.records.layout import STEPS, RunLayout
from sonde.run import Run
from sonde.train import reporting
from sonde.train.reporting import Reporter
from sonde.train.schedule import Schedule
from sonde.train.settings import TrainerSettings
from sonde.train.step import StepResult
from sonde.train.stopping import StopWhen
from sonde.train.task import StepOutput
from sonde.train.trainer import Trainer


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[Reporter]:
    with RecordFile(RunLayout(tmp_path).record_file(STEPS, 0)) as file:
        yield Reporter(Logger([]), interval=1000, steps=file)


def update(reporter: Reporter, *numbers: int) -> None:
    for number in numbers:
        result = StepResult(loss=float(number), weight=1.0, grad_norm=1.0)
        reporter.update(
            Context(ContextValues(step=number, lr=0.1)), result, data_seconds=0.0, batch=None
        )
        reporter.end_update()


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
            reporter.evaluation(Context(ContextValues(step=2, lr=0.1)), {"loss": 1.0}, 1.0)
            return recorded(tmp_path)

    if moment == "error":
        with pytest.raises(ValueError, match="planted"):
            train()
    else:
        assert train() == [1, 2]
    assert recorded(tmp_path) == [1, 2]


def test_what_a_task_and_a_callback_log_reaches_the_log_the_step_records_and_the_progress_line(
    tmp_path: Path,
) -> None:
    class Task(Regression):
        def compute(self, batch: Tensor) -> StepOutput:
            metrics.log_scalar("accuracy", float(len(batch)), round=3)
            metrics.log_scalar("_hidden", 1.0)
            return super().compute(batch)

    class Memory(Callback):
        seen: ClassVar[list[dict[str, float]]] = []

        def on_step_end(self, context: Context) -> None:
            self.seen.append(dict(context.logged))
            if context.step != 3:
                metrics.log_scalar("gpu_memory", 100.0 * context.step)

    out = io.StringIO()
    with Run(tmp_path) as run:
        task = Task()
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.0)
        trainer = Trainer(
            task,
            Numbers(),
            optimizer,
            schedule=Schedule(schedule="constant", lr=0.1),
            run=run,
            settings=TrainerSettings(log_interval=2),
        )
        progress = ProgressCallback(interval=1, console=Console(file=out, width=200))
        trainer.train(stop=StopWhen(max_updates=4), callbacks=[Memory(), progress])
        trainer.logger.flush()
    steps = read_steps(tmp_path).by_number
    assert [dict(steps[number].values) for number in (1, 2, 3, 4)] == [
        {"accuracy": 2.0, "gpu_memory": 100.0},
        {"accuracy": 3.0, "gpu_memory": 200.0},
        {"accuracy": 4.0},
        {"accuracy": 2.0, "gpu_memory": 400.0},
    ]
    logged = [record.data for record in read(tmp_path) if record.type == "LOG"]
    assert [(data["accuracy"], data["gpu_memory"]) for data in logged] == [
        (2.5, 150.0),
        (3.0, 400.0),
    ]
    assert "_hidden" not in logged[0]
    assert [seen["accuracy"] for seen in Memory.seen] == [2.0, 3.0, 4.0, 2.0]
    assert "accuracy 3" in out.getvalue().splitlines()[1]
