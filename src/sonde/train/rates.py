"""Who says the learning rate of each update: a `Schedule`, a function of the update's number, or a torch scheduler.

    Trainer(…, schedule=Schedule(peak_lr=5e-4, num_warmup_updates=400))
    Trainer(…, schedule=lambda update: 0.1 * 0.9 ** (update // 1000))           # 0-based
    Trainer(…, schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000))

A torch scheduler is stepped after every update (`ReduceLROnPlateau` after every evaluation, with the metric), may give each parameter group a
rate of its own, and its state is part of the checkpoint. The other two remember nothing.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeAlias, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import override

from sonde.errors import SettingError
from sonde.train.schedule import Plateau, Schedule
from sonde.train.stopping import StopWhen

AnySchedule: TypeAlias = Schedule | LRScheduler | Callable[[int], float]
"""What a trainer takes."""


def rates_of(schedule: AnySchedule, optimizer: Optimizer) -> "Rates":
    """The rates that a schedule stands for."""
    if isinstance(schedule, LRScheduler):
        if schedule.optimizer is not optimizer:
            raise SettingError("the scheduler belongs to another optimiser than the trainer's")
        return _SchedulerRates(schedule)
    if isinstance(schedule, Schedule) or callable(schedule):
        return _FunctionRates(schedule, optimizer)
    raise SettingError(
        f"schedule is a {type(schedule).__name__}",
        hint="give a Schedule, a function of the update's number, or a scheduler of torch.optim.lr_scheduler",
    )


class Rates(ABC):
    """The learning rate of a training."""

    def __init__(self) -> None:
        self.plateau: Plateau | None = None
        """Scales the rate when evaluations get no better."""

    def check(self, stop: StopWhen) -> None:  # noqa: B027  most have nothing to check
        """Refuse what cannot go together."""

    def facts(self) -> object:
        """What must be the same on every rank."""
        return type(self).__name__

    @property
    def stateful(self) -> Any:
        """What a checkpoint must hold of it; None when there is nothing."""
        return None

    def past_peak(self, update: int) -> bool:
        """Is the warm-up over, so that a low rate means the end?"""
        return update > 0

    @abstractmethod
    def lr(self, update: int) -> float:
        """The rate of the update with this 0-based number, the next one."""

    @abstractmethod
    def apply(self, update: int) -> float:
        """Set it in the optimiser, before the update."""

    def after_update(self) -> None:  # noqa: B027  doing nothing is the default
        """An update was made."""

    def after_evaluation(self, value: float) -> None:
        """An evaluation found this value of the metric."""
        if self.plateau is not None:
            self.plateau.observe(value)


@final
class _FunctionRates(Rates):
    def __init__(self, schedule: Schedule | Callable[[int], float], optimizer: Optimizer) -> None:
        super().__init__()
        self._schedule = schedule
        self._lr: Callable[[int], float] = schedule.lr if isinstance(schedule, Schedule) else schedule
        self._optimizer = optimizer

    @override
    def check(self, stop: StopWhen) -> None:
        if isinstance(self._schedule, Schedule):
            stop.check_peak_lr(self._schedule.peak_lr)

    @override
    def facts(self) -> object:
        return asdict(self._schedule) if isinstance(self._schedule, Schedule) else super().facts()

    @override
    def past_peak(self, update: int) -> bool:
        return self._schedule.past_peak(update) if isinstance(self._schedule, Schedule) else super().past_peak(update)

    @override
    def lr(self, update: int) -> float:
        return self._lr(update) * (self.plateau.scale if self.plateau else 1.0)

    @override
    def apply(self, update: int) -> float:
        lr = self.lr(update)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        return lr


@final
class _SchedulerRates(Rates):
    def __init__(self, scheduler: LRScheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    @override
    def check(self, stop: StopWhen) -> None:
        if self.plateau is not None:
            raise SettingError("a torch scheduler goes without trainer.plateau", hint="use ReduceLROnPlateau")

    @property
    @override
    def stateful(self) -> Any:
        return self._scheduler

    @override
    def lr(self, update: int) -> float:
        return float(self._scheduler.optimizer.param_groups[0]["lr"])

    @override
    def apply(self, update: int) -> float:
        return self.lr(update)

    @override
    def after_update(self) -> None:
        if not isinstance(self._scheduler, ReduceLROnPlateau):
            with (
                warnings.catch_warnings()
            ):  # torch looks for calls of optimizer.step, which the trainer makes in its own way
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                self._scheduler.step()

    @override
    def after_evaluation(self, value: float) -> None:
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(value)
