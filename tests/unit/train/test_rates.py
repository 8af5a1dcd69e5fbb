"""Any schedule: sonde's own, a function, torch's; the same rates, and the same after a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import Numbers, Regression, weights
from torch.optim import lr_scheduler

from sonde.errors import SettingError
from sonde.records.journal import read_steps
from sonde.run import Run
from sonde.train.schedule import Plateau, Schedule
from sonde.train.settings import TrainerSettings
from sonde.train.stopping import StopWhen
from sonde.train.trainer import Trainer


def make(
    run: Run | None, schedule: Any = None, *, of: Any = None, lr: float = 0.1, **settings: Any
) -> tuple[Trainer, Regression]:
    """`of` makes a scheduler of an optimizer."""
    task = Regression()
    optimizer = torch.optim.SGD(task.model.parameters(), lr=lr)
    made = schedule if of is None else of(optimizer)
    valid = [torch.ones(3, 4)]
    chosen = TrainerSettings(log_interval=1, **settings)
    return Trainer(
        task,
        Numbers(),
        optimizer,
        schedule=made,
        run=run,
        valid_data=lambda: valid,
        settings=chosen,
    ), task


def rates(directory: Path) -> list[float]:
    return [step.lr for step in read_steps(directory).by_number.values()]


def test_a_function_of_the_update_says_the_rate(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        make(run, lambda update: 0.1 * 0.5**update)[0].train(stop=StopWhen(max_updates=3))
    assert rates(tmp_path) == [0.1, 0.05, 0.025]


@pytest.mark.parametrize(
    "kind",
    [
        lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1)),
        lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1, 3]),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
    ],
)
def test_a_torch_scheduler_says_the_rate_and_resumes_exactly(tmp_path: Path, kind: Any) -> None:
    with Run(tmp_path / "whole") as run:
        trainer, whole = make(run, of=kind)
        trainer.train(stop=StopWhen(max_updates=6))
    for end in (3, 6):
        with Run(tmp_path / "resumed") as run:
            trainer, resumed = make(run, of=kind)
            trainer.train(stop=StopWhen(max_updates=end))
    reference = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = kind(reference)
    expected = []
    for _ in range(6):
        expected.append(reference.param_groups[0]["lr"])
        reference.step()
        scheduler.step()
    assert rates(tmp_path / "whole") == rates(tmp_path / "resumed") == expected
    assert weights(whole) == weights(resumed)


def test_reduce_on_plateau_follows_the_evaluations(tmp_path: Path) -> None:
    def of(optimizer: torch.optim.Optimizer) -> Any:
        return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)

    with Run(tmp_path) as run:
        make(run, of=of, lr=1e-20, validate_every_updates=1)[0].train(stop=StopWhen(max_updates=3))
    # below its eps; the metric ties, so it was asked
    assert rates(tmp_path) == pytest.approx([1e-20, 1e-20, 1e-20])
    with Run(tmp_path / "b") as run:
        trainer, _ = make(run, of=of, lr=1e-7, validate_every_updates=1)
        trainer.train(stop=StopWhen(max_updates=4))
    assert min(rates(tmp_path / "b")) <= 1e-7


def test_what_is_no_schedule_and_what_cannot_go_together_is_refused() -> None:
    with pytest.raises(SettingError, match="schedule is a float"):
        make(None, 0.1)
    with pytest.raises(SettingError, match="another optimizer"):
        make(
            None, lr_scheduler.StepLR(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1), 1)
        )

    def of(optimizer: torch.optim.Optimizer) -> Any:
        return lr_scheduler.StepLR(optimizer, 2)

    trainer, _ = make(None, of=of)
    trainer.plateau = Plateau()
    with pytest.raises(SettingError, match=r"without trainer\.plateau"):
        trainer.train(stop=StopWhen(max_updates=1))


def test_a_plateau_scales_a_schedule(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        trainer, _ = make(run, Schedule(schedule="constant", lr=1e-30), validate_every_updates=1)
        trainer.plateau = Plateau(factor=0.5, patience=1)
        trainer.train(stop=StopWhen(max_updates=3))
    assert rates(tmp_path) == [1e-30, 1e-30, 0.5e-30]
