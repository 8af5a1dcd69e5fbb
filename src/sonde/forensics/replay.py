"""A training put back to a moment, in this process: any update made again, exactly or with one thing changed.

    replay = Replay(Path("runs/a"))
    replay.go_to(1734)                         # the state before update 1734: a checkpoint, and the updates since
    replay.loss(drop=[("train", 20117)])       # what it would lose without that sample; nothing moves
    result = replay.update()                   # the update itself: bit for bit what the run recorded

Where states and batches come from and who makes an update are three seams (seams.py); without any given they are those of sonde's own trainer,
built by the run's recipe (trainer_seams.py). What comes out is bitwise equal on the same machine with the same versions, threads and number of
ranks (ordered sums: on any number that divides the micro-batches of an update). Every rank of a run with several makes one of its own, inside a
process group.

Nothing is written to the run. The process's threads and its generators are set as the run had them.
"""

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import torch

from sonde import ranks
from sonde.errors import SettingError
from sonde.forensics.history import settings_at
from sonde.forensics.losses import Losses
from sonde.forensics.recipe_of_run import build_pieces
from sonde.forensics.seams import Name, Seams
from sonde.forensics.surroundings import (
    Surroundings,
    differences,
    settings_changes,
    surroundings_here,
    surroundings_of_run,
)
from sonde.forensics.tensor_watch import Watch
from sonde.forensics.trainer_seams import trainer_seams
from sonde.records.manifest import read_manifest
from sonde.records.steps import StepRecord, read_steps
from sonde.train.determinism import generators_kept, set_determinism
from sonde.train.settings import Precision
from sonde.train.step import StepResult


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
    settings_of: int | None = None
    """Build the training with the settings that were in force at this step; None: with those of the last start."""

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

    def __init__(self, run: str | Path, *, options: ReplayOptions | None = None, seams: Seams | None = None) -> None:
        """The training of the run in `run`, at its beginning; without seams of its own it is built by the run's recipe."""
        self.run = run = Path(run)
        self.options = options or ReplayOptions()
        self.manifest = read_manifest(run)
        self._then = surroundings_of_run(run, self.manifest, rank=ranks.rank())
        set_determinism(self._then.determinism)
        if self.options.deterministic:
            torch.use_deterministic_algorithms(True)
        self._records = read_steps(run).by_number
        self._is_built = seams is None
        self.seams = seams or self._of_the_trainer()
        """Where states and batches come from, and who makes an update."""
        self.num_updates = 0
        """Updates made: the next one is `num_updates + 1`."""
        self._valid: dict[int, bool] = {}
        self._from_step = 0
        # Where the training of a seam stands is its own affair, until it is put somewhere.
        self._is_exact = self._is_built
        self.deviations: list[int] = []
        """Steps that were made again since the checkpoint, unchanged, and gave another loss than recorded."""

    @property
    def model(self) -> torch.nn.Module:
        """What is trained."""
        return self.seams.updater.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What moves it."""
        return self.seams.updater.optimizer

    @property
    def precision(self) -> Precision:
        """What the run makes its steps in."""
        return self.seams.updater.precision

    def checkpoints(self) -> list[int]:
        """The steps that there is a valid state after, 0 for the beginning; every byte of them is read once."""
        return [step for step in self.seams.states.steps() if self._is_valid(step)]

    @property
    def first_step(self) -> int:
        """The first update that can be made again: the one after the oldest state."""
        return min(self.checkpoints(), default=0) + 1

    def state_after(self, step: int) -> Mapping[str, Any]:
        """The state after a step, from its checkpoint, to look at: `model` and `optimizer` as state dicts. Nothing moves."""
        return self.seams.states.load(step)

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
            checkpoint = self._nearest(step)
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
            return self.seams.batches.at(step)

    def update(
        self,
        *,
        batches: Sequence[Any] | None = None,
        drop: Collection[Name] = (),
        lr: float | None = None,
        precision: Precision | None = None,
        watch: Watch | None = None,
    ) -> StepResult:
        """Make the next update: as it was, or with other batches, without some samples, at another rate, in another precision.

        `watch` looks at the modules meanwhile. Every rank must call it.
        """
        step = self.num_updates + 1
        own = self.seams.batches.take(step)
        used = self._without(own if batches is None else batches, drop)
        result = self.seams.updater.update(step, used, rate=lr, precision=precision, watch=watch)
        self.num_updates = step
        if batches is not None or drop or lr is not None or precision is not None:
            self._is_exact = False
        recorded = self.recorded(step)
        if self._is_exact and recorded is not None and not same_bits(recorded.loss, result.loss):
            self.deviations.append(step)
        return result

    def loss(
        self,
        *,
        batches: Sequence[Any] | None = None,
        drop: Collection[Name] = (),
        precision: Precision | None = None,
    ) -> Losses:
        """What the next update would lose, with the random numbers it would draw; nothing moves. Every rank must call it."""
        step = self.num_updates + 1
        used = self._without(self.batches(step) if batches is None else batches, drop)
        return self.seams.updater.losses(step, used, precision=precision)

    def snapshot(self) -> "Snapshot":
        """The whole state, copied: weights, optimiser, generators, position, counters."""
        state = copy.deepcopy(self.seams.states.collect())
        return Snapshot(state, self.num_updates, self._from_step, self._is_exact, tuple(self.deviations))

    def restore(self, snapshot: "Snapshot") -> None:
        """Go back to a snapshot, which stays good for another time."""
        # Copied once more: an optimiser takes tensors as its own.
        self.seams.states.restore(copy.deepcopy(snapshot.state))
        self._from_step, self._is_exact = snapshot.from_step, snapshot.is_exact
        self.deviations = list(snapshot.deviations)
        self._moved(snapshot.num_updates)

    def load_weights(self, step: int) -> None:
        """Take the weights after `step` updates, from a checkpoint or from the beginning, and leave everything else."""
        if not self._is_valid(step):
            known = ", ".join(map(str, self.checkpoints()))
            raise SettingError(f"there is no valid checkpoint after {step} updates", hint=f"there are {known}")
        self.model.load_state_dict(self.state_after(step)["model"])
        self._is_exact = False

    def differences(self) -> tuple[str, ...]:
        """What is not as the run recorded it, a sentence each; and the first step on the way whose loss is another."""
        data = self.seams.batches.fingerprints()
        now: Surroundings = surroundings_here(self.manifest, world_size=ranks.world_size(), data=data)
        told = [*differences(self._then, now), *self._other_settings()]
        if self.deviations:
            told.append(f"the loss is another from step {self.deviations[0]} on")
        return tuple(told)

    def _other_settings(self) -> tuple[str, ...]:
        step = max(self.num_updates, 1)
        if self.options.settings_of is not None or not self._is_built:
            return ()
        return settings_changes(self.run, self.manifest, step)

    def _of_the_trainer(self) -> Seams:
        options = self.options
        pieces = build_pieces(
            replace(self.manifest, settings=settings_at(self.run, self.manifest, options.settings_of)),
            device=_device(),
            recipe=options.recipe,
            trust_recipe=options.trust_recipe,
            data=options.data,
        )
        trained_on = self.manifest.world_size
        return trainer_seams(self.run, pieces, self._records, trained_on=trained_on, ranks_here=options.world_size)

    def with_settings_of(self, step: int) -> "Replay | None":
        """Another replay of the run, built with the settings that were in force at a step; None when its recipe does not build it."""
        if not self._is_built:
            return None
        return Replay(self.run, options=replace(self.options, settings_of=step))

    def _nearest(self, step: int) -> int:
        steps = [one for one in self.seams.states.steps() if one < step]
        for one in reversed(steps):
            if self._is_valid(one):
                return one
        raise SettingError(f"no state from before step {step} was kept", hint="save checkpoints more often")

    def _is_valid(self, step: int) -> bool:
        if step not in self._valid:
            self._valid[step] = step in self.seams.states.steps() and self.seams.states.is_good(step)
        return self._valid[step]

    def _load(self, step: int) -> None:
        self.seams.states.restore(self.seams.states.load(step))
        self._from_step, self._is_exact = step, True
        self.deviations = []
        self._moved(step)

    def _moved(self, num_updates: int) -> None:
        self.num_updates = num_updates
        self.seams.batches.moved(num_updates)

    def _without(self, batches: Sequence[Any], drop: Collection[Name]) -> list[Any]:
        return [self.seams.batches.without(batch, drop) for batch in batches]


@final
@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state in memory."""

    state: Mapping[str, Any]
    """As the seam collects it."""
    num_updates: int
    """How far it has come."""
    from_step: int
    """The checkpoint that it came from."""
    is_exact: bool
    """Is it a state that the run was in?"""
    deviations: tuple[int, ...]
    """Steps on the way that gave another loss."""


def same_bits(one: float, other: float) -> bool:
    """Are two numbers the same to the last bit? NaN is NaN."""
    return one == other or (math.isnan(one) and math.isnan(other))


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
