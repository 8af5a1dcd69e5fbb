"""The seam at which `sonde check` takes over the updates of sonde's own trainer.

The check sits above this package, so the order that its process was started with names who makes
the updates (records/replay_order.py). Without such an order, nothing changes.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

import torch

from sonde.records.replay_order import order_of_process
from sonde.run import Run
from sonde.train.gradients import GradientSync
from sonde.train.loss_scale import LossScale
from sonde.train.settings import TrainerSettings
from sonde.train.step import StepResult, UpdateStep
from sonde.train.task import Task


class UpdateMaker(Protocol):
    """What makes the updates of a trainer."""

    @property
    def scale(self) -> LossScale:
        """The loss scale of float16 training."""

    def run(
        self,
        update: int,
        micro_batches: Sequence[tuple[int, Any]],
        *,
        wants_stop: bool = False,
        on_gradients: Callable[[float], None] | None = None,
    ) -> StepResult:
        """Make the update with this 0-based number from this rank's micro-batches."""


def update_maker(
    task: Task,
    optimizer: torch.optim.Optimizer,
    sync: GradientSync,
    settings: TrainerSettings,
    run: Run | None,
) -> UpdateMaker:
    """Return what makes the updates of a training: an `UpdateStep`, in a check by way of what the
    order names.
    """
    step = UpdateStep(task, optimizer, sync, settings)
    order = order_of_process()
    if order is None or not order.trainer_steps:
        return step
    module, _, name = order.trainer_steps.partition(":")
    checked = getattr(import_module(module), name)
    made: UpdateMaker = checked(step, task.model, optimizer, order.run if run is None else run)
    return made
