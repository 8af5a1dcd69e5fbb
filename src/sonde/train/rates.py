"""The learning rate of every update, from whatever the user gave as a schedule.

A `Schedule` and a function of the 0-based update number have no state. A torch scheduler is stepped
after every update (`ReduceLROnPlateau` after every evaluation, with the metric). It may give each
parameter group a rate of its own, and its state is part of the checkpoint.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeAlias

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sonde.errors import SettingError
from sonde.train.schedule import Plateau, Schedule
from sonde.train.stopping import StopWhen

AnySchedule: TypeAlias = Schedule | LRScheduler | Callable[[int], float]
"""The kinds of schedule that a trainer accepts."""


def describe_schedule(schedule: AnySchedule) -> dict[str, Any] | str:
    """Return what of a schedule must be the same on every rank."""
    return asdict(schedule) if isinstance(schedule, Schedule) else type(schedule).__name__


class Rates:
    """The learning rates of a training run."""

    def __init__(self, schedule: AnySchedule, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._schedule = schedule if isinstance(schedule, Schedule) else None
        self.scheduler = schedule if isinstance(schedule, LRScheduler) else None
        """The torch scheduler, whose state is saved in checkpoints; None if the rate is a function
        of the update.
        """
        self.plateau: Plateau | None = None
        """Scales the rate when evaluations stop improving."""
        if self.scheduler is None and self._schedule is None and not callable(schedule):
            raise SettingError(
                f"schedule is a {type(schedule).__name__}",
                hint=(
                    "give a Schedule, a function of the update's number, or a scheduler of"
                    " torch.optim.lr_scheduler"
                ),
            )
        if self.scheduler is not None and self.scheduler.optimizer is not optimizer:
            raise SettingError("the scheduler belongs to another optimizer than the trainer's")
        # not called where there is a scheduler
        self._function: Callable[[int], float] = (
            schedule.rate if isinstance(schedule, Schedule) else schedule  # type: ignore[assignment]
        )

    def check(self, stop: StopWhen) -> None:
        """Raise on combinations that do not work together."""
        if self._schedule is not None:
            stop.check_peak_lr(self._schedule.lr)
        if self.scheduler is not None and self.plateau is not None:
            raise SettingError(
                "a torch scheduler goes without trainer.plateau", hint="use ReduceLROnPlateau"
            )

    def past_peak(self, update: int) -> bool:
        """Return whether the warm-up is over, so that a low rate means the end of the schedule."""
        return update >= (1 if self._schedule is None else self._schedule.warmup)

    def lr(self, update: int) -> float:
        """Return the rate of the next update, whose 0-based number is `update`."""
        if self.scheduler is not None:
            return float(self._optimizer.param_groups[0]["lr"])
        return self._function(update) * (self.plateau.scale if self.plateau else 1.0)

    def apply(self, update: int) -> float:
        """Set the rate in the optimizer before the update, and return it."""
        lr = self.lr(update)
        if self.scheduler is None:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
        return lr

    def after_update(self) -> None:
        """Step the torch scheduler after an update, if there is one."""
        if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()

    def after_evaluation(self, value: float) -> None:
        """Pass the metric of an evaluation to the plateau or scheduler."""
        if self.plateau is not None:
            self.plateau.observe(value)
        elif isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(value)
