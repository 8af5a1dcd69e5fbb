"""Put a training back to an earlier step, in this process, and repeat any update exactly or with
one thing changed.

    replay = Replay(Path("runs/a"))
    replay.go_to(1734)                         # the state before update 1734: a checkpoint, and the
                                               # updates since
    replay.loss(drop=[("train", 20117)])       # the loss without that sample; nothing changes
    result = replay.update()                   # the update itself: bit for bit what the run
                                               # recorded

Where states and batches come from and what makes an update are defined by three seams (seams.py).
By default they are those of sonde's own trainer, built by the run's recipe (trainer_seams.py).
Results are bitwise equal on the same machine with the same versions, threads and number of ranks
(with ordered sums: any number of ranks that divides the micro-batches of an update). In a run with
several ranks, each rank creates its own Replay inside a process group.

`replay_step` replays one step with the tensors of every module recorded; this is what `sonde
replay` shows. Every tensor is compared with the same one in a calm update: the batch of the
previous step, with the same weights. What is large in both is due to the weights; what is large in
one is due to the batch.

Nothing is written to the run. The thread count and the generators of the process are set to those
of the run.
"""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from sonde import ranks
from sonde.errors import SettingError
from sonde.forensics.case import same_bits
from sonde.forensics.changes import (
    differences,
    environment_here,
    environment_of_run,
    settings_changes,
)
from sonde.forensics.history import settings_at
from sonde.forensics.seams import Change, Losses, ModuleWatch, Name, Seams
from sonde.forensics.trainer_seams import trainer_seams
from sonde.forensics.verdict import ModuleStatistics, ReplayResult
from sonde.probe.debugger import PrecisionDebugger
from sonde.probe.settings import TENSOR
from sonde.probe.watching import watch as watch_modules
from sonde.records.journal import StepRecord, read_steps
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.replay_order import ReplayOptions
from sonde.train.determinism import generators_restored, set_determinism
from sonde.train.settings import Precision
from sonde.train.step import StepResult


class Replay:
    """A training that can be put back to any step. Its position is `num_updates`."""

    def __init__(
        self,
        run: str | Path,
        *,
        options: ReplayOptions | None = None,
        seams: Seams | None = None,
        settings_of: int | None = None,
    ) -> None:
        """Rebuild the training of a run, at its beginning.

        Args:
            run: The directory of the run.
            options: How the run is rebuilt.
            seams: Where states, batches and updates come from; without it, the run's recipe.
            settings_of: Use the settings of this step; None uses those of the last start.
        """
        self.run = run = Path(run)
        self._settings_of = settings_of
        self.options = options or ReplayOptions()
        self.manifest = read_manifest(run)
        self._then = environment_of_run(run, self.manifest, rank=ranks.rank())
        set_determinism(self._then["determinism"])
        if self.options.deterministic:
            torch.use_deterministic_algorithms(True)
        self._records = read_steps(run).by_number
        self._is_built = seams is None
        if seams is None:
            manifest = replace(self.manifest, settings=settings_at(run, self.manifest, settings_of))
            seams = trainer_seams(run, manifest, self.options, self._records)
        self.seams = seams
        """Where states and batches come from, and what makes an update."""
        self.model = self.seams.updater.model
        self.optimizer = self.seams.updater.optimizer
        """What is trained, and what trains it."""
        self.num_updates = 0
        """The number of completed updates: the next one is `num_updates + 1`."""
        self._is_good = cache(self.seams.states.is_good)
        self._from_step = 0
        # The position of a training behind custom seams is unknown until `go_to` sets it.
        self._is_exact = self._is_built
        self.deviations: list[int] = []
        """Steps since the checkpoint that were replayed unchanged but gave a different loss than
        recorded.
        """

    def checkpoints(self) -> list[int]:
        """Return the steps with a valid checkpoint; 0 is the beginning. Every byte of them is read
        once.
        """
        return [step for step in self.seams.states.steps() if self._is_good(step)]

    @property
    def first_step(self) -> int:
        """The first update that can be replayed: the one after the oldest state."""
        return min(self.checkpoints(), default=0) + 1

    def state_after(self, step: int) -> Mapping[str, Any]:
        """Load the state after a step from its checkpoint, with `model` and `optimizer` as state
        dicts. The training is unchanged.
        """
        return self.seams.states.load(step)

    def recorded(self, step: int) -> StepRecord | None:
        """Return what the run recorded about a step."""
        return self._records.get(step)

    def go_to(self, step: int) -> int:
        """Put the training where it was before update `step`, and return the checkpoint used.

        That is the newest valid one before the step; the updates since are replayed.
        """
        if step < 1:
            raise SettingError(f"step {step} cannot be replayed", hint="the first update is step 1")
        states = self.seams.states
        checkpoint = None
        for kept in reversed(states.steps()):
            if kept < step and self._is_good(kept):
                checkpoint = kept
                break
        if checkpoint is None:
            raise SettingError(
                f"no state from before step {step} was kept", hint="save checkpoints more often"
            )
        if not (self._is_exact and checkpoint <= self._from_step <= self.num_updates < step):
            states.restore(states.load(checkpoint))
            self.num_updates = checkpoint
            self._from_step = checkpoint
            self._is_exact = True
            self.deviations = []
        while self.num_updates < step - 1:
            self.update()
        return self._from_step

    def batches(self, step: int) -> list[Any]:
        """Return this rank's micro-batches of any update. The training is unchanged."""
        if step < 1:
            raise SettingError(
                f"there is no batch of step {step}", hint="the first update is step 1"
            )
        with generators_restored():
            return self.seams.batches.at(step)

    def update(
        self,
        *,
        batches: Sequence[Any] | None = None,
        drop: Collection[Name] = (),
        lr: float | None = None,
        precision: Precision | None = None,
        watch: ModuleWatch | None = None,
    ) -> StepResult:
        """Make the next update: unchanged, or with other batches, without some samples, or with
        another learning rate or precision.

        `watch` records the tensors of the modules. Every rank must call this.
        """
        step = self.num_updates + 1
        change = Change(lr, precision)
        used = self._without(self.seams.batches.at(step) if batches is None else batches, drop)
        result = self.seams.updater.update(step, used, change, watch)
        self.num_updates = step
        if batches is not None or drop or change != Change():
            self._is_exact = False
        recorded = self.recorded(step)
        if self._is_exact and recorded is not None and not same_bits(recorded.loss, result.loss):
            self.deviations.append(step)
        return result

    def loss(self, *, batches: Sequence[Any] | None = None, drop: Collection[Name] = ()) -> Losses:
        """Return the losses of the next update, with the random numbers it would draw. Nothing
        changes. Every rank must call this.
        """
        step = self.num_updates + 1
        used = self._without(self.batches(step) if batches is None else batches, drop)
        return self.seams.updater.losses(step, used)

    def snapshot(self) -> "Snapshot":
        """Copy the whole state: weights, optimizer, generators, position and counters."""
        state = copy.deepcopy(self.seams.states.collect())
        return Snapshot(
            state, self.num_updates, self._from_step, self._is_exact, tuple(self.deviations)
        )

    def restore(self, snapshot: "Snapshot") -> None:
        """Return to a snapshot, which can be used again."""
        # Copied again, because an optimizer takes ownership of the tensors.
        self.seams.states.restore(copy.deepcopy(snapshot.state))
        self.num_updates = snapshot.num_updates
        self._from_step = snapshot.from_step
        self._is_exact = snapshot.is_exact
        self.deviations = list(snapshot.deviations)

    def load_weights(self, step: int) -> None:
        """Load the weights after `step` updates, from a checkpoint or from the beginning, and leave
        everything else unchanged.
        """
        if step not in self.seams.states.steps() or not self._is_good(step):
            known = ", ".join(map(str, self.checkpoints()))
            raise SettingError(
                f"there is no valid checkpoint after {step} steps", hint=f"there are {known}"
            )
        self.model.load_state_dict(self.state_after(step)["model"])
        self._is_exact = False

    def differences(self) -> tuple[str, ...]:
        """Return what differs from the recorded run, one sentence each, and the first replayed step
        with a different loss.
        """
        data = self.seams.batches.fingerprints()
        now = environment_here(self.manifest, world_size=ranks.world_size(), data=data)
        found = list(differences(self._then, now))
        if self._is_built and self._settings_of is None:
            found += settings_changes(self.run, self.manifest, max(self.num_updates, 1))
        if self.deviations:
            found.append(f"the loss is another from step {self.deviations[0]} on")
        return tuple(found)

    @property
    def is_whole(self) -> bool:
        """Whether all of the training is run again, because a recipe builds it. Of a script, only
        its step function is.
        """
        return self._is_built

    def with_settings_of(self, step: int) -> "Replay | None":
        """Return another replay of the run with the settings that `step` used; None if the run was
        not built from a recipe.
        """
        if not self._is_built:
            return None
        return Replay(self.run, options=self.options, settings_of=step)

    def _without(self, batches: Sequence[Any], drop: Collection[Name]) -> list[Any]:
        return [self.seams.batches.without(batch, drop) for batch in batches]


class Snapshot(NamedTuple):
    """A state in memory."""

    state: Mapping[str, Any]
    """The state as collected by the seam."""
    num_updates: int
    """The number of completed updates."""
    from_step: int
    """The checkpoint that it was reached from."""
    is_exact: bool
    """Whether the run itself was in this state."""
    deviations: tuple[int, ...]
    """Replayed steps on the way that gave a different loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayReport:
    """A step as recorded and as replayed."""

    run_id: str
    """The id of the run."""
    step: int
    """The step; 1 is the first update."""
    replay: ReplayResult
    """The loss, and whether it was reproduced."""
    recorded: StepRecord | None
    """The record of the step, if there is one."""
    grad_norm: float | None
    """The replayed gradient norm."""
    weight: float
    """The number of target tokens in the replay."""
    skipped: str | None
    """Why the update was skipped; None if it was applied."""
    changes: tuple[str, ...]
    """The requested changes to the step. With any of them, the loss is not expected to match the
    recorded one.
    """
    modules: tuple[ModuleStatistics, ...]
    """Statistics of every tensor of the step on this rank: activations, gradients, parameters."""


def replay_step(
    run: Path,
    step: int,
    options: ReplayOptions | None = None,
    *,
    dump: bool = False,
    seams: Seams | None = None,
) -> ReplayReport:
    """Replay step `step` of a run. With `dump`, write every input and output to the run's probe
    folder.

    `seams` provides states, batches and updates for a run that sonde's trainer did not make.
    """
    _check_made(run, step)
    options = options or ReplayOptions()
    replay = Replay(run, options=options, seams=seams, settings_of=step)
    from_step = replay.go_to(step)
    if options.weights_from is not None:
        replay.load_weights(options.weights_from)
    calm = calm_norms(replay)
    watch = ModuleWatch()
    with _dumped(replay.model, dump_folder(run, step)) if dump else nullcontext():
        result = replay.update(
            batches=None if options.swap_batch is None else replay.batches(options.swap_batch),
            drop=options.dropped,
            precision="float32" if options.float32 else None,
            watch=watch,
        )
    recorded = replay.recorded(step)
    notes = list(replay.differences())
    if (
        recorded is not None
        and not options.changes
        and _norms_differ(recorded.grad_norm, result.grad_norm)
    ):
        notes.append(
            f"the gradient norm was {recorded.grad_norm!r} and is now {result.grad_norm!r}"
        )
    reproduced = None
    if recorded is not None and not options.changes:
        reproduced = same_bits(recorded.loss, result.loss)
    if reproduced is False:
        notes += replay.seams.batches.problems()
    return ReplayReport(
        run_id=replay.manifest.run_id,
        step=step,
        replay=ReplayResult(
            from_step=from_step,
            recorded_loss=None if recorded is None else recorded.loss,
            replayed_loss=result.loss,
            reproduced=reproduced,
            differences=tuple(notes),
        ),
        recorded=recorded,
        grad_norm=result.grad_norm,
        weight=result.weight,
        skipped=result.skipped,
        changes=options.changes,
        modules=tuple(
            replace(module, calm_norm=calm.get((module.kind, module.module)))
            for module in watch.modules()
        ),
    )


def _check_made(run: Path, step: int) -> None:
    """Raise if a run says that it has not come to a step."""
    num_made = max(read_steps(run).by_number, default=None)
    if num_made is not None and step > num_made:
        raise SettingError(f"{run} has no step {step}", hint=f"it has made {num_made} steps")


def calm_norms(replay: Replay) -> dict[tuple[str, str], float]:
    """Return norms by kind and module for the batch of the previous step, with the current weights.
    The position of the replay is unchanged.

    Empty at the first step, which has no previous one.
    """
    if not replay.num_updates:
        return {}
    before = replay.snapshot()
    watch = ModuleWatch()
    replay.update(batches=replay.batches(replay.num_updates), watch=watch)
    replay.restore(before)
    return {(module.kind, module.module): module.norm for module in watch.modules()}


def dump_folder(run: Path, step: int) -> Path:
    """Return the folder for the tensors of a replayed step."""
    return RunLayout(run).probe / f"replay-{step}"


@contextmanager
def _dumped(model: nn.Module, folder: Path) -> Iterator[None]:
    debugger = PrecisionDebugger(dump_path=folder, task=TENSOR)
    try:
        with watch_modules(model):
            yield
            debugger.step()
    finally:
        debugger.close()


def _norms_differ(then: float | None, now: float | None) -> bool:
    return then is not now if then is None or now is None else not same_bits(then, now)
