"""The trainer's TensorBoard writer: made when asked for, in the run, closed at the end."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.errors import SettingError
from sonde.run import Run
from sonde.train.schedule import Schedule
from sonde.train.stopping import StopWhen
from sonde.train.task import StepOutput
from sonde.train.trainer import Trainer


class Task:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 1)

    def compute(self, batch: torch.Tensor) -> StepOutput:
        return StepOutput(loss_sum=self.model(batch).square().sum(), weight=len(batch))


class Ones(list[torch.Tensor]):
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: object) -> None:
        del state


class Writing(Callback):
    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def on_step_end(self, context: Context) -> None:
        self.writer.add_scalar("loss", context.tensors["loss"], context.step)


def make(run: Run | None, *, create_tb_writer: bool) -> Trainer:
    task = Task()
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    schedule = Schedule(schedule="constant", lr=0.1)
    return Trainer(
        task,
        Ones([torch.ones(1, 2)] * 3),
        optimizer,
        schedule=schedule,
        run=run,
        create_tb_writer=create_tb_writer,
    )


def test_a_writer_is_made_when_asked_for_and_its_events_are_in_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with Run(tmp_path) as run:
        assert make(run, create_tb_writer=False).tb_writer is None
        trainer = make(run, create_tb_writer=True)
        trainer.train(stop=StopWhen(max_updates=3), callbacks=[Writing(trainer.tb_writer)])
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert events.read_bytes().count(b"loss") == 3
    assert trainer.tb_writer.file_writer is None  # closed


def test_a_writer_without_a_run_is_refused() -> None:
    with pytest.raises(SettingError, match="needs a run"):
        make(None, create_tb_writer=True)
