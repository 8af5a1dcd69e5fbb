"""A training put back to a moment, in this process: any update made again, exactly or with one thing changed.

    replay = Replay(Path("runs/a"))
    replay.go_to(1734)                         # the state before update 1734: a checkpoint, and the updates since
    replay.loss(drop=[("train", 20117)])       # what it would lose without that sample; nothing moves
    result = replay.update()                   # the update itself: bit for bit what the run recorded

It is the training's own code that runs: the recipe, `UpdateStep`, `TrainerState`, the loader with the run's skip list, the recorded learning
rate. What comes out is bitwise equal on the same machine with the same versions, threads and number of ranks (ordered sums: on any number that
divides the micro-batches of an update). Every rank of a run with several makes one of its own, inside a process group.

Nothing is written to the run. The process's threads and its generators are set as the run had them.
"""

import copy
import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from sonde import ranks
from sonde.checkpoint.folder import SHARD_FOLDER
from sonde.checkpoint.store import CheckpointStore
from sonde.checkpoint.weights import check_fit, read_weights
from sonde.errors import SettingError
from sonde.forensics.feed import Feed, without
from sonde.forensics.losses import Losses, compute_losses
from sonde.forensics.recipe_of_run import build_pieces
from sonde.forensics.skip_history import read_skip_history
from sonde.forensics.surroundings import (
    Surroundings,
    differences,
    settings_changes,
    surroundings_here,
    surroundings_of_run,
)
from sonde.forensics.tensor_watch import Watch
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.steps import StepRecord, read_steps
from sonde.train.determinism import set_determinism
from sonde.train.evaluation import generators_kept
from sonde.train.parameters import check_parameters, choose_sync
from sonde.train.recipe import Pieces, fingerprints
from sonde.train.state import TrainerState
from sonde.train.step import Precision, StepResult, StepSettings, UpdateStep

BEGINNING = 0
"""The checkpoint that always exists: no update was made, the weights are the recipe's first ones."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOptions:
    """How to put a training back, and what to change about the step that is looked at."""

    precision: Literal["float32"] | None = None
    """Make the step in this precision; those before it are made as they were. None: as it was."""
    deterministic: bool = False
    """Let torch use deterministic algorithms only."""
    weights_from: int | None = None
    """Make the step with the weights after this many updates; 0 are the first ones."""
    swap_batch: int | None = None
    """Make the step with the batch of this other step."""
    drop: tuple[tuple[str, int], ...] = ()
    """Make the step without these samples, by dataset and number."""
    world_size: int | None = None
    """Ranks that replay; None: as many as the run had."""
    recipe: str | None = None
    """`module:function` that builds the pieces, instead of the manifest's."""
    trust_recipe: bool = False
    """Import the recipe that the manifest names."""
    data: Path | None = None
    """Where the data is now, if it was moved."""

    @property
    def changes(self) -> tuple[str, ...]:
        """What the step is made with that the run did not have, a sentence each."""
        told = [f"the step is made in {self.precision}"] if self.precision else []
        told += [f"the weights are those after update {self.weights_from}"] if self.weights_from is not None else []
        told += [f"the batch is that of step {self.swap_batch}"] if self.swap_batch is not None else []
        told += [f"without {', '.join(f'{name}:{number}' for name, number in self.drop)}"] if self.drop else []
        return tuple(f"{one}, as asked" for one in told)


@final
class Replay:
    """One training, put back. Where it stands is `num_updates`."""

    def __init__(self, run: Path, *, options: ReplayOptions | None = None) -> None:
        """Build the pieces of the run in `run`; they stand at the beginning."""
        self.run = run
        self.options = options or ReplayOptions()
        self.manifest = read_manifest(run)
        self._then = surroundings_of_run(run, self.manifest, rank=ranks.rank())
        set_determinism(self._then.determinism)
        if self.options.deterministic:
            torch.use_deterministic_algorithms(True)
        self.pieces = build_pieces(
            self.manifest,
            device=_device(),
            recipe=self.options.recipe,
            trust_recipe=self.options.trust_recipe,
            data=self.options.data,
        )
        model, optimizer = self.pieces.task.model, self.pieces.optimizer
        _refuse_wrapped(model)
        check_parameters(model, optimizer)
        model.train()
        self.update_freq = _update_freq(self.pieces.settings.update_freq, self.manifest.world_size, self.options)
        """Micro-batches of this rank in an update."""
        self._settings = replace(self.pieces.settings, update_freq=self.update_freq)
        self._sync = choose_sync(model, self._settings)
        self._steps: dict[Precision, UpdateStep] = {}
        self._own_step = self._step_in(self._settings.precision)
        parts: dict[str, Any] = {"data": self.pieces.data, "scale": self._own_step.scale, "metrics": _Forgetful()}
        self._state = TrainerState(model, optimizer, parts)
        self._store = CheckpointStore(RunLayout(run).checkpoints)
        self._feed = Feed(
            self.pieces.data, self._store.folder, update_freq=self.update_freq, skips=read_skip_history(run)
        )
        self._records = read_steps(run).by_number
        self._valid: dict[int, bool] = {}
        self._from_step = BEGINNING
        self._is_exact = True
        self.deviations: list[int] = []
        """Steps that were made again since the checkpoint, unchanged, and gave another loss than recorded."""
        self._first = self.snapshot()

    @property
    def num_updates(self) -> int:
        """Updates made: the next one is `num_updates + 1`."""
        return self._state.counters.num_updates

    def checkpoints(self) -> list[int]:
        """The steps that the run has a valid checkpoint after, and the beginning; every byte of them is read once."""
        return [BEGINNING, *(step for step in self._store.folder.steps() if self._is_valid(step))]

    def recorded(self, step: int) -> StepRecord | None:
        """What the run recorded of a step."""
        return self._records.get(step)

    def go_to(self, step: int, *, checkpoint: int | None = None) -> int:
        """Put the training where it was before update `step`; returns the checkpoint that it came from.

        That is the newest valid one before it, unless named; the updates since are made again.
        """
        if step < 1:
            raise SettingError(f"step {step} cannot be replayed", hint="the first update is step 1")
        if checkpoint is None:
            checkpoint = self._nearest(step - 1)
            if not (self._is_exact and checkpoint <= self._from_step <= self.num_updates < step):
                self._load(checkpoint)
        elif checkpoint >= step or checkpoint not in self.checkpoints():
            known = ", ".join(str(one) for one in self.checkpoints() if one < step)
            raise SettingError(
                f"step {step} cannot be reached from a checkpoint after {checkpoint}", hint=f"use {known}"
            )
        else:
            self._load(checkpoint)
        while self.num_updates < step - 1:
            self.update()
        return self._from_step

    def batches(self, step: int) -> list[Any]:
        """This rank's micro-batches of an update, any update. Nothing moves."""
        if step < 1:
            raise SettingError(f"there is no batch of step {step}", hint="the first update is step 1")
        with generators_kept():
            return self._feed.batches(step)

    def update(
        self,
        *,
        batches: Sequence[Any] | None = None,
        drop: Collection[tuple[str, int]] = (),
        lr: float | None = None,
        precision: Precision | None = None,
        watch: Watch | None = None,
    ) -> StepResult:
        """Make the next update: as it was, or with other batches, without some samples, at another rate, in another precision.

        `watch` looks at the modules meanwhile. Every rank must call it.
        """
        own, number = self._feed.take(self.num_updates + 1), self.num_updates
        used = self._numbered(own if batches is None else batches, drop)
        self._set_lr(lr)
        step = self._own_step if precision is None else self._step_in(precision)
        with watch.on(self.pieces.task.model) if watch else nullcontext():
            result = step.run(number, used)
        if watch is not None:
            self._scale(watch, result)
        self._state.counters.num_updates += 1
        self._state.counters.num_skipped += result.skipped is not None
        if batches is not None or drop or lr is not None or precision is not None:
            self._is_exact = False
        recorded = self.recorded(number + 1)
        if self._is_exact and recorded is not None and not same_bits(recorded.loss, result.loss):
            self.deviations.append(number + 1)
        return result

    def loss(
        self,
        *,
        batches: Sequence[Any] | None = None,
        drop: Collection[tuple[str, int]] = (),
        precision: Precision | None = None,
    ) -> Losses:
        """What the next update would lose, with the random numbers it would draw; nothing moves. Every rank must call it."""
        used = self._numbered(self.batches(self.num_updates + 1) if batches is None else batches, drop)
        settings = self._settings.step if precision is None else replace(self._settings.step, precision=precision)
        return compute_losses(self.pieces.task, used, settings, update=self.num_updates)

    def snapshot(self) -> "Snapshot":
        """The whole state, copied: weights, optimiser, generators, position, counters."""
        return Snapshot(copy.deepcopy(self._state.collect()), self._from_step, self._is_exact, tuple(self.deviations))

    def restore(self, snapshot: "Snapshot") -> None:
        """Go back to a snapshot, which stays good for another time."""
        # Copied once more: an optimiser takes tensors as its own.
        self._state.restore(copy.deepcopy(snapshot.state))
        self._from_step, self._is_exact = snapshot.from_step, snapshot.is_exact
        self.deviations = list(snapshot.deviations)
        self._feed.moved(self.num_updates)

    def load_weights(self, step: int) -> None:
        """Take the weights after `step` updates, from a checkpoint or from the beginning, and leave everything else."""
        model = self.pieces.task.model
        if step == BEGINNING:
            model.load_state_dict(self._first.state["model"])
        elif self._is_valid(step):
            path = self._store.folder.path(step)
            _, weights = read_weights(path)
            check_fit(path, weights, model)
            model.load_state_dict(weights)
        else:
            known = ", ".join(map(str, self.checkpoints()))
            raise SettingError(f"there is no valid checkpoint after {step} updates", hint=f"there are {known}")
        self._is_exact = False

    def differences(self) -> tuple[str, ...]:
        """What is not as the run recorded it, a sentence each; and the first step on the way whose loss is another."""
        data = fingerprints(self.pieces.directory) if isinstance(self.pieces, Pieces) else {}
        now: Surroundings = surroundings_here(self.manifest, world_size=ranks.world_size(), data=data)
        told = [*differences(self._then, now), *settings_changes(self.run, self.manifest, max(self.num_updates, 1))]
        if self.deviations:
            told.append(f"the loss is another from step {self.deviations[0]} on")
        return tuple(told)

    def _nearest(self, num_updates: int) -> int:
        steps = [step for step in self._store.folder.steps() if step <= num_updates]
        return next((step for step in reversed(steps) if self._is_valid(step)), BEGINNING)

    def _is_valid(self, step: int) -> bool:
        if step not in self._valid:
            self._valid[step] = step in self._store.folder.steps() and not self._store.folder.problems(step)
        return self._valid[step]

    def _load(self, step: int) -> None:
        if step == BEGINNING:
            self.restore(self._first)
            return
        path = self._store.folder.path(step)
        if (path / SHARD_FOLDER).exists():
            raise SettingError(f"{path} holds weights in parts", cause="a replay needs them whole on each rank")
        saved = self._store.load(step)
        check_fit(path, saved["model"], self.pieces.task.model)
        self._state.restore(saved)
        self._from_step, self._is_exact = step, True
        self.deviations = []
        self._feed.moved(step)

    def _numbered(self, batches: Sequence[Any], drop: Collection[tuple[str, int]]) -> list[tuple[int, Any]]:
        device, rank, world = _device_of(self.pieces.task.model), ranks.rank(), ranks.world_size()
        kept = [without(batch, drop, self.pieces.data) for batch in batches]
        moved = [batch.to(device) if device.type != "cpu" and hasattr(batch, "to") else batch for batch in kept]
        return [(position * world + rank, batch) for position, batch in enumerate(moved)]

    def _set_lr(self, lr: float | None) -> None:
        """The rate asked for, else the recorded one (a plateau or a restart may have changed it), else the schedule's."""
        recorded = self.recorded(self.num_updates + 1)
        if lr is None:
            lr = self.pieces.schedule.lr(self.num_updates) if recorded is None else recorded.lr
        for group in self.pieces.optimizer.param_groups:
            group["lr"] = lr

    def _step_in(self, precision: Precision) -> UpdateStep:
        if precision not in self._steps:
            settings: StepSettings = replace(self._settings.step, precision=precision)
            self._steps[precision] = UpdateStep(self.pieces.task, self.pieces.optimizer, self._sync, settings)
        return self._steps[precision]

    def _scale(self, watch: Watch, result: StepResult) -> None:
        """Tell the watch how far gradients are from those of the mean loss, before clipping."""
        mean, clip_norm, norm = result.mean_factor, self._settings.clip_norm, result.grad_norm
        if result.skipped is not None:
            watch.scale(mean, mean)
        elif clip_norm is not None and norm is not None and norm > clip_norm:
            watch.scale(mean, norm / clip_norm)
        else:
            watch.scale(mean, 1.0)


@final
@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state in memory."""

    state: dict[str, Any]
    """As `TrainerState` collects it."""
    from_step: int
    """The checkpoint that it came from."""
    is_exact: bool
    """Is it a state that the run was in?"""
    deviations: tuple[int, ...]
    """Steps on the way that gave another loss."""


@final
class _Forgetful:
    """Stands in for the metrics of a process, which a replay leaves alone."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        del state


def same_bits(one: float, other: float) -> bool:
    """Are two numbers the same to the last bit? NaN is NaN."""
    return one == other or (math.isnan(one) and math.isnan(other))


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _device_of(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


def _refuse_wrapped(model: torch.nn.Module) -> None:
    if isinstance(model, (FSDPModule, DistributedDataParallel)):
        raise SettingError(
            f"a model in {type(model).__name__} cannot be replayed",
            cause="a replay needs the bare model, whole on each rank",
            hint="let the recipe return the model before it is wrapped; its sums are equal up to rounding, not bitwise",
        )


def _update_freq(update_freq: int, world_size: int, options: ReplayOptions) -> int:
    """Micro-batches of each rank in an update, so that all ranks together take as many as the run's did."""
    here, wanted = ranks.world_size(), options.world_size or world_size
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
