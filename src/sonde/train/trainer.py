"""`Trainer`: epochs of updates, with evaluation, checkpoints, metrics and callbacks, until a stop condition is met.

    trainer = Trainer(task, data, optimizer, run=run, schedule=Schedule(peak_lr=5e-4, num_warmup_updates=400))
    reason = trainer.train(stop=StopWhen(max_updates=10_000), callbacks=[…])

loop.py says what happens when.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, final

import torch

from sonde import ranks
from sonde.callbacks.base import Callback, Context
from sonde.callbacks.spikes import SpikeCallback
from sonde.data.skip_list import read_skip_list
from sonde.errors import MissingDependency, SettingError
from sonde.log.logger import Logger
from sonde.records.layout import EVENTS, STEPS
from sonde.run import Run
from sonde.train import determinism
from sonde.train.any_data import as_training_data
from sonde.train.gradients import trainable
from sonde.train.loop import Loop
from sonde.train.parameters import check_parameters, describe_shapes
from sonde.train.rates import AnySchedule, rates_of
from sonde.train.reporting import visible_logging
from sonde.train.schedule import Plateau, Schedule
from sonde.train.settings import TrainerSettings
from sonde.train.signals import StopSignals
from sonde.train.stopping import StopWhen
from sonde.train.task import Task, TrainingData


class Mending(Protocol):
    """Who mends a training that goes wrong: `sonde.heal.Heal`, of a room above this one."""

    def train(self, trainer: "Trainer", start: Callable[[Callback, bool], str]) -> str:
        """Train by `start(one callback more, start over?)`, as often as it takes; returns why it stopped."""


@final
class Trainer:
    """Trains one task on one source of data."""

    def __init__(
        self,
        task: Task,
        data: TrainingData | Iterable[Any],
        optimizer: torch.optim.Optimizer,
        *,
        schedule: AnySchedule,
        run: Run | None = None,
        valid_data: Callable[[], Iterable[Any]] | None = None,
        settings: TrainerSettings | None = None,
        heal: Mending | None = None,
        create_tb_writer: bool = False,
    ) -> None:
        """`data` may be a torch DataLoader (any_data.py), `schedule` a function or a torch scheduler (rates.py).

        `valid_data()` gives this rank's held-out batches from the start, each time it is called.
        `heal=Heal(max_times=5)` has the run mend itself (docs/heal.md). `create_tb_writer=True` makes a `tb_writer` for callbacks to write to.
        """
        self.settings = settings or TrainerSettings()
        self.plateau: Plateau | None = None
        """Set one to lower the rate when an evaluation brings no improvement."""
        self.logger = run.logger if run else Logger([])
        """Where log records go; the run's own stream unless you set another before training."""
        self.task = task
        self.data: Any = as_training_data(data)
        """Where batches come from."""
        self.schedule = schedule
        """Who says the learning rate."""
        self.run = run
        """Where everything is written; None: nowhere."""
        self.optimizer = optimizer
        self.rates = rates_of(schedule, optimizer)
        self.valid_data = valid_data
        check_parameters(task.model, optimizer)
        self.device = trainable(task.model)[0].device
        if heal is not None and run is None:
            raise SettingError("heal needs a run to go back in", hint="Trainer(…, run=Run('runs/a'))")
        self.heal = heal
        self.tb_writer: Any = _tb_writer(run) if create_tb_writer else None
        """A TensorBoard SummaryWriter into the run, on rank 0, if it was asked for; else None."""
        self.gave_up = False
        """Did the last training end because a callback gave its state up?"""

    @property
    def checkpoint_dir(self) -> Path | str | None:
        """Where the run's checkpoints are; None without a run."""
        return self.run.checkpoint_place if self.run else None

    def train(self, *, stop: StopWhen, callbacks: Sequence[Callback] = (), start_over: bool = False) -> str:
        """Train until a stop condition is met; returns which one, in words.

        A run goes on from its newest valid checkpoint; one that saved some and has none left is refused, unless it shall
        `start_over`. After SIGTERM or Ctrl-C it raises SystemExit (143, 130) once the checkpoint is saved.
        """
        callbacks = self._with_spikes(callbacks)
        if self.heal is None:
            return self._train(stop, callbacks, start_over)
        return self.heal.train(self, lambda watch, again: self._train(stop, [*callbacks, watch], start_over or again))

    def go_on_with(
        self, *, skip_list: str | None = None, lr_limit: float | None = None, lr_limit_until: int | None = None
    ) -> None:
        """From the next start on, leave out what a skip list names, and let the learning rate of a `Schedule` be no higher than this."""
        if skip_list is not None:
            self.data.leave_out(read_skip_list(Path(skip_list)))
        if lr_limit is not None:
            assert isinstance(self.schedule, Schedule)
            limited = replace(self.schedule, limit=lr_limit, limit_until=lr_limit_until)
            self.rates = rates_of(limited, self.optimizer)

    def _train(self, stop: StopWhen, callbacks: Sequence[Callback], start_over: bool) -> str:
        self.rates.plateau = self.plateau
        self.rates.check(stop)
        facts = {"settings": asdict(self.settings), "schedule": self.rates.facts(), "stop": asdict(stop)}
        ranks.check_agreement({**facts, "model": describe_shapes(self.task.model)})
        if self.run is not None and self.run.rank == 0:
            determinism.tell_changes(self.run.layout.record_file(EVENTS, 0))
        self.event(determinism.EVENT, **determinism.describe_determinism())
        steps = self.run.records(STEPS) if self.run is not None and self.run.rank == 0 else None
        with StopSignals() as signals, visible_logging():
            loop = Loop(self, self._context(), stop=stop, callbacks=callbacks, signals=signals, steps=steps)
            reason = loop.run(start_over=start_over)
            self.gave_up = not loop.at_end
        if signals.received is not None:
            raise SystemExit(signals.exit_code)
        return reason

    def _context(self) -> Context:
        directory = self.run.directory if self.run else None
        context = Context(rank=ranks.rank(), world_size=ranks.world_size(), run_directory=directory)
        if self.tb_writer is not None:
            context.close_at_end(self.tb_writer)
        return context

    def _with_spikes(self, callbacks: Sequence[Callback]) -> Sequence[Callback]:
        """The callbacks, and one that records spikes unless there is one, or no run."""
        if (
            self.run is None
            or not self.settings.watch_spikes
            or any(isinstance(one, SpikeCallback) for one in callbacks)
        ):
            return callbacks
        dataset = getattr(self.data, "dataset", None)
        named = {} if dataset is None else {getattr(dataset, "name", ""): dataset}
        return [*callbacks, SpikeCallback(self.run.spikes(datasets=named), seed=self.settings.seed)]

    def event(self, name: str, **details: object) -> None:
        """Record that something happened to the run, if there is one."""
        if self.run is not None:
            self.run.event(name, **details)


def _tb_writer(run: Run | None) -> Any:
    """A `SummaryWriter` into the run; None on other ranks than 0."""
    if run is None:
        raise SettingError("create_tb_writer needs a run to write to", hint="Trainer(…, run=Run('runs/a'))")
    if ranks.rank() != 0:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingDependency("tensorboard", needed_for="create_tb_writer", extra="tensorboard") from None
    return SummaryWriter(str(run.layout.root / "tensorboard"))
