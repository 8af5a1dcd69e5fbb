"""What sonde's own trainer says when it resumes: one line after a kill, and what was changed in the
checkpoint, in the settings or in the model since.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_group import run_ranks
from tiny_training import Regression, make_trainer
from torch import Tensor
from torch.utils.data import DataLoader

from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.resume_report import ResumeReport, read_reports
from sonde.checkpoint.store import CheckpointStore
from sonde.run import Run
from sonde.train.rates import Rates
from sonde.train.schedule import Schedule
from sonde.train.stopping import StopWhen
from sonde.train.task import StepOutput
from sonde.train.trainer import Trainer

SAVED = 4


class Killed(Regression):
    """Kills its process at the second batch after the checkpoint of step `SAVED` is there."""

    def __init__(self, checkpoints: Path) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.num_batches = 0

    def compute(self, batch: Tensor) -> StepOutput:
        self.num_batches += 1
        while self.num_batches == SAVED + 2:  # it is written in the background
            if SAVED in CheckpointFolder(self.checkpoints).steps():
                os.kill(os.getpid(), signal.SIGKILL)
        return super().compute(batch)


def killed_training(directory: Path) -> None:
    def work(rank: int) -> None:
        del rank
        with Run(directory) as run:
            task = Killed(directory / "checkpoints")
            trainer, _ = make_trainer(run, task=task, save_every_updates=2)
            trainer.train(stop=StopWhen(max_updates=20))

    run_ranks(1, work, killed=[0])


def resumed(directory: Path, change: Callable[[Trainer], None] = lambda _: None) -> ResumeReport:
    with Run(directory) as run:
        trainer, _ = make_trainer(run)
        change(trainer)
        trainer.train(stop=StopWhen(max_updates=SAVED + 3))
    (report,) = read_reports(directory)
    return report


def change_checkpoint(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the newest checkpoint, and leave it valid."""
    place = directory / "checkpoints"
    state = CheckpointStore(place).load(SAVED)
    change(state)
    CheckpointFolder(place).remove(SAVED)
    CheckpointStore(place).save(SAVED, state)


def others(report: ResumeReport) -> dict[str, str]:
    return {finding.what: finding.status for finding in report.findings if finding.status != "same"}


def test_a_killed_training_resumes_with_one_line(tmp_path: Path) -> None:
    killed_training(tmp_path / "run")
    report = resumed(tmp_path / "run")
    assert report.from_step == SAVED
    assert len(report.lines()) == 1
    assert others(report) == {}


def forget_the_optimizer(state: dict[str, Any]) -> None:
    state["optimizer"]["state"] = {}


def forget_a_layer(state: dict[str, Any]) -> None:
    state["model"]["2.weight"] = torch.zeros(1, 8)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (forget_the_optimizer, {"moments": "lost", "step count": "lost"}),
        (forget_a_layer, {"weights": "lost"}),
    ],
)
def test_what_a_changed_checkpoint_lacks_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], expected: dict[str, str]
) -> None:
    killed_training(tmp_path / "run")
    change_checkpoint(tmp_path / "run", change)
    assert others(resumed(tmp_path / "run")) == expected


def raise_the_rate(trainer: Trainer) -> None:
    trainer.rates = Rates(Schedule(schedule="constant", lr=5e-2), trainer.optimizer)


def freeze_a_layer(trainer: Trainer) -> None:
    trainer.task.model.get_submodule("0").requires_grad_(requires_grad=False)


@pytest.mark.parametrize(
    ("change", "part"), [(raise_the_rate, "rate"), (freeze_a_layer, "trainable")]
)
def test_what_somebody_may_have_wanted_is_a_fact(
    tmp_path: Path, change: Callable[[Trainer], None], part: str
) -> None:
    killed_training(tmp_path / "run")
    assert others(resumed(tmp_path / "run", change)) == {part: "changed"}


@pytest.mark.parametrize(
    ("first_end", "expected"),
    [(StopWhen(max_updates=3), {"data": "changed"}), (StopWhen(max_epochs=1), {})],
)
def test_a_loader_without_a_position_begins_its_epoch_again(
    tmp_path: Path, first_end: StopWhen, expected: dict[str, str]
) -> None:
    for end in (first_end, StopWhen(max_epochs=2)):
        with Run(tmp_path / "run") as run:
            task = Regression()
            trainer = Trainer(
                task,
                DataLoader(torch.randn(8, 4), batch_size=2),  # type: ignore[arg-type]
                torch.optim.AdamW(task.model.parameters()),
                schedule=Schedule(schedule="constant", lr=1e-2),
                run=run,
            )
            trainer.train(stop=end)
    (report,) = read_reports(tmp_path / "run")
    assert others(report) == expected
