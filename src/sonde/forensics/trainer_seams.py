"""The replay seams for a run of sonde's own trainer: its checkpoints, its loader by position, and its `UpdateStep`.

The components come from the run's recipe, so the training's own code runs, with the run's skip list and the recorded
learning rates.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from sonde import ranks
from sonde.checkpoint.store import CheckpointStore
from sonde.checkpoint.weights import check_fit
from sonde.errors import SettingError
from sonde.forensics.history import read_skip_history
from sonde.forensics.losses import Losses, compute_losses
from sonde.forensics.recipe_of_run import TrainingPieces
from sonde.forensics.seams import Seams
from sonde.forensics.tensor_watch import Watch
from sonde.forensics.trainer_batches import LoaderBatches
from sonde.records.manifest import checkpoint_place
from sonde.records.steps import StepRecord
from sonde.train.gradients import check_parameters, choose_sync
from sonde.train.saving import TrainerState
from sonde.train.schedule import Schedule
from sonde.train.settings import Precision, TrainerSettings
from sonde.train.step import StepResult, UpdateStep

BEGINNING = 0
"""The checkpoint that always exists: before the first update, with the recipe's initial weights."""


def trainer_seams(
    run: Path, pieces: TrainingPieces, records: Mapping[int, StepRecord], *, trained_on: int, ranks_here: int | None
) -> Seams:
    """Build the seams of a run that was trained on `trained_on` ranks. `ranks_here` is the number of replaying ranks; None means the same."""
    model = pieces.task.model
    _refuse_wrapped(model)
    check_parameters(model, pieces.optimizer)
    model.train()
    update_freq = _update_freq(pieces.settings.update_freq, trained_on, ranks_here or trained_on)
    updater = TrainerUpdater(pieces, replace(pieces.settings, update_freq=update_freq), records)
    parts: dict[str, Any] = {"data": pieces.data, "scale": updater.own_step.scale, "metrics": _Forgetful()}
    store = CheckpointStore(checkpoint_place(run))
    states = CheckpointStates(store, TrainerState(model, pieces.optimizer, parts), model)
    skips = read_skip_history(run)
    batches = LoaderBatches(pieces, store.folder, update_freq=update_freq, skips=skips)
    return Seams(states=states, batches=batches, updater=updater)


class CheckpointStates:
    """The checkpoints of a run, and the initial weights of its recipe."""

    def __init__(self, store: CheckpointStore, state: TrainerState, model: nn.Module) -> None:
        """The training must be at its beginning."""
        self._store = store
        self._state = state
        self._model = model
        self._first = copy.deepcopy(state.collect())

    def steps(self) -> list[int]:
        """Return the beginning and the checkpoints on disk."""
        return [BEGINNING, *self._store.folder.steps()]

    def is_good(self, step: int) -> bool:
        """Return whether every byte of the checkpoint verifies."""
        return step == BEGINNING or (step in self._store.folder.steps() and not self._store.folder.problems(step))

    def load(self, step: int) -> Mapping[str, Any]:
        """Load a whole checkpoint from disk."""
        if step == BEGINNING:
            return copy.deepcopy(self._first)
        path = self._store.folder.where(step)
        if self._store.folder.is_sharded(step):
            raise SettingError(f"{path} holds weights in parts", cause="a replay needs them whole on each rank")
        saved = self._store.load(step)
        check_fit(path, saved["model"], self._model)
        return saved

    def collect(self) -> Mapping[str, Any]:
        """Return the current state."""
        return self._state.collect()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._state.restore(state)


class TrainerUpdater:
    """Makes updates as the trainer does."""

    def __init__(self, pieces: TrainingPieces, settings: TrainerSettings, records: Mapping[int, StepRecord]) -> None:
        """`records` are the run's step records, needed because a plateau or a restart may have changed the learning rate."""
        self._pieces = pieces
        self._settings = settings
        self.model, self.optimizer, self.precision = pieces.task.model, pieces.optimizer, settings.precision
        """What the recipe built, and the precision of the run."""
        self._records = records
        self._sync = choose_sync(self.model, settings)
        self._steps: dict[Precision, UpdateStep] = {}
        self.own_step = self._step_in(settings.precision)
        """The update step in the run's own precision."""

    def scheduled_rate(self, step: int) -> float | None:
        """Return the learning rate of the schedule for `step`, or None if it cannot be computed from the step."""
        schedule = self._pieces.schedule
        return schedule.rate(step - 1) if isinstance(schedule, Schedule) else None

    def update(
        self,
        step: int,
        batches: Sequence[Any],
        *,
        rate: float | None = None,
        precision: Precision | None = None,
        watch: Watch | None = None,
    ) -> StepResult:
        """Make an update at the given learning rate; by default the recorded one, otherwise the schedule's."""
        recorded = self._records.get(step)
        if rate is None:
            rate = self.scheduled_rate(step) if recorded is None else recorded.lr
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        made = self.own_step if precision is None else self._step_in(precision)
        with watch.on(self.model) if watch else nullcontext():
            result = made.run(step - 1, self._numbered(batches))
        if watch is not None:
            self._scale(watch, result)
        return result

    def losses(self, step: int, batches: Sequence[Any]) -> Losses:
        """Compute the losses with a forward pass only."""
        return compute_losses(self._pieces.task, self._numbered(batches), self._settings, update=step - 1)

    def _numbered(self, batches: Sequence[Any]) -> list[tuple[int, Any]]:
        device, rank, world = next(self.model.parameters()).device, ranks.rank(), ranks.world_size()
        moved = [batch.to(device) if device.type != "cpu" and hasattr(batch, "to") else batch for batch in batches]
        return [(position * world + rank, batch) for position, batch in enumerate(moved)]

    def _step_in(self, precision: Precision) -> UpdateStep:
        if precision not in self._steps:
            settings = replace(self._settings, precision=precision)
            self._steps[precision] = UpdateStep(self._pieces.task, self._pieces.optimizer, self._sync, settings)
        return self._steps[precision]

    def _scale(self, watch: Watch, result: StepResult) -> None:
        """Pass the watch the factors that turn gradients into those of the mean loss before clipping."""
        mean, clip_norm = result.mean_factor, self._settings.clip_norm
        clipped = 1.0 if clip_norm is None or result.grad_norm is None else max(1.0, result.grad_norm / clip_norm)
        watch.scale(mean, clipped if result.skipped is None else mean)


class _Forgetful:
    """Replaces the metrics of a process, which a replay must not change."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        del state


def _refuse_wrapped(model: torch.nn.Module) -> None:
    if isinstance(model, (FSDPModule, DistributedDataParallel)):
        raise SettingError(
            f"a model in {type(model).__name__} cannot be replayed",
            cause="a replay needs the bare model, whole on each rank",
            hint="let the recipe return the model before it is wrapped; its sums are equal up to rounding, not bitwise",
        )


def _update_freq(update_freq: int, world_size: int, wanted: int) -> int:
    """Return the micro-batches per rank and update, so that all ranks together use as many as the run did."""
    here = ranks.world_size()
    if here != wanted:
        raise SettingError(
            f"the replay is to have {wanted} ranks, and there are {here}",
            hint="`sonde replay` starts them; in your own code use torchrun, or ReplayOptions(world_size=1)",
        )
    if update_freq * world_size % here:
        raise SettingError(
            f"{here} ranks cannot share the {update_freq * world_size} micro-batches of an update evenly",
            hint=f"use a number that divides {update_freq * world_size}",
        )
    return update_freq * world_size // here
