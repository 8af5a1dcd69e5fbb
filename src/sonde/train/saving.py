"""The checkpoints of one training run: their content and place, restoring, and saving in the
background.

Everything that exact resume needs is collected from its owners as one nested dict, and restored:

    model, optimizer, scale, plateau       the trained state
    data                                   the position: a few integers
    counters, stop, evaluation             updates, epochs, seconds; best value and patience; the
                                           last results
    metrics, callbacks                     their state
    ranks                                  the generators of python, numpy and torch on each rank

The content is the same on every rank except for `ranks`, which is gathered. Rank 0 writes; for a
model under FSDP2 each rank holds and writes its own part. The run's own folder and
`TrainerSettings` apply unless a callback planned otherwise (`Context.plan_checkpoints`). A failed
save is recorded; with `on_save_error="raise"` it also ends the run at the next step boundary, on
every rank.
"""

import logging
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule

from sonde import ranks
from sonde.callbacks.context import CheckpointPlan
from sonde.checkpoint.folder import About, Keep, describe_problems
from sonde.checkpoint.state import is_sharded
from sonde.checkpoint.store import BackgroundSaver, CheckpointStore, Outcome
from sonde.checkpoint.weights import bare, check_fit
from sonde.errors import RunError, SettingError, SondeError
from sonde.records.journal import read_events
from sonde.records.replay_order import is_check
from sonde.run import Run
from sonde.train.determinism import generators, set_generators
from sonde.train.settings import TrainerSettings
from sonde.train.stopping import StopState

_logger: Final = logging.getLogger("sonde")
NO_CHECKPOINT: Final = "no checkpoint could be restored"


class Stateful(Protocol):
    """Anything whose state can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data and tensors."""

    def load_state_dict(self, state: Any) -> object:
        """Restore from `state_dict`."""


@dataclass(slots=True)
class Counters:
    """Progress counters of a run."""

    num_updates: int = 0
    """Updates made so far, which is also the step of a checkpoint."""
    num_epochs: int = 0
    """Completed epochs."""
    num_skipped: int = 0
    """Updates that did not change the weights."""
    seconds: float = 0.0
    """Seconds spent training, over all starts."""


@dataclass(slots=True)
class LastEvaluation:
    """Results of the last evaluation, so that a resumed run neither repeats nor forgets it."""

    step: int = -1
    """Number of updates before the evaluation; -1 before the first one."""
    results: dict[str, float] = field(default_factory=dict)
    """Results by name."""


class TrainerState:
    """The state of one training run, collected from its parts."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        parts: Mapping[str, Stateful],
        callbacks: Sequence[Stateful] = (),
    ) -> None:
        """`parts` are further objects to save, by name. Callbacks are named by class, and numbered
        within a class.
        """
        self.counters = Counters()
        self.stop = StopState()
        self.evaluation = LastEvaluation()
        self._model = model
        self._optimizer = optimizer
        self._plain: dict[str, Any] = {
            "counters": self.counters,
            "stop": self.stop,
            "evaluation": self.evaluation,
        }
        self._parts = parts
        names = [type(callback).__name__ for callback in callbacks]
        numbered = [f"{name}#{names[:place].count(name)}" for place, name in enumerate(names)]
        self._callbacks = dict(zip(numbered, callbacks, strict=True))

    def collect(self) -> dict[str, Any]:
        """Return the whole state. Every rank must call it."""
        model, optimizer = _model_state(self._model, self._optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            **{name: asdict(part) for name, part in self._plain.items()},
            **{name: part.state_dict() for name, part in self._parts.items()},
            "callbacks": {
                name: callback.state_dict() for name, callback in self._callbacks.items()
            },
            "ranks": ranks.gather(generators()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the whole state. If there are more ranks than before, new ones take rank 0's
        generators.
        """
        hint = (
            "watch your own loop with a Recorder: what it keeps can be replayed (docs/any-loop.md)"
        )
        check_state(state, "this checkpoint is no state of sonde's trainer", hint)
        _load_model_state(self._model, self._optimizer, state["model"], state["optimizer"])
        for plain, values in ((part, state.get(name, {})) for name, part in self._plain.items()):
            for name, value in values.items():
                setattr(plain, name, value)
        for parts, saved in ((self._parts, state), (self._callbacks, state.get("callbacks", {}))):
            for name, part in parts.items():
                if name in saved:  # what the checkpoint does not have stays as it is
                    part.load_state_dict(saved[name])
        set_generators_of_rank(state["ranks"])


def check_state(state: Mapping[str, Any], problem: str, hint: str) -> None:
    """Raise SettingError if a state lacks what every training has."""
    missing = [name for name in ("model", "optimizer", "ranks") if name not in state]
    if missing:
        raise SettingError(f"{problem}: it has no {', '.join(missing)}", hint=hint)


def set_generators_of_rank(of_ranks: Sequence[Mapping[str, Any]]) -> None:
    """Set this rank's generators. If there are more ranks than before, new ones take rank 0's."""
    own = ranks.rank()
    set_generators(of_ranks[own if own < len(of_ranks) else 0])


def _model_state(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], dict[str, Any]]:
    if isinstance(model, FSDPModule):
        return get_state_dict(model, optimizer)
    return bare(model).state_dict(), optimizer.state_dict()


def _load_model_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    weights: dict[str, Any],
    moments: dict[str, Any],
) -> None:
    if isinstance(model, FSDPModule):
        whole = StateDictOptions(full_state_dict=not is_sharded(weights))
        set_state_dict(
            model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=whole
        )
        return
    bare(model).load_state_dict(weights)
    optimizer.load_state_dict(moments)


class Checkpoints:
    """Restores at the start, saves during training, and records every failed save."""

    def __init__(
        self,
        plan: CheckpointPlan | None,
        run: Run | None,
        settings: TrainerSettings,
        event: Callable[..., None],
    ) -> None:
        """`event` records events of the run."""
        self._run = run
        self._event = event
        self._run_id = run.manifest.run_id if run else None
        self.follows_settings = plan is None
        """Whether the trainer's settings, and not a callback, decide when to save."""
        if plan is None and run is not None:
            plan = CheckpointPlan(
                folder=run.checkpoint_place, keep=Keep(newest=settings.keep_checkpoints)
            )
        self._plan = plan
        self._store: CheckpointStore | None = None
        self._saver: BackgroundSaver | None = None
        if plan is not None:
            self._store = CheckpointStore(plan.folder, run_id=self._run_id)
            if plan.saves:
                self._saver = BackgroundSaver(self._store, plan.keep)
        self._raises = settings.on_save_error == "raise"
        self._saved_at = -1
        self.news: Sized = self._saver.outcomes if self._saver else ()
        """Not empty if `finished` has something to report."""
        self.failure: str | None = None
        """Description of a failed save that must end the run; None otherwise."""

    def restore(
        self, state: TrainerState, model: nn.Module, *, start_over: bool = False
    ) -> int | None:
        """Restore the newest valid checkpoint. Returns its step, or None if there was nothing to
        restore.

        Raises if the run has saved checkpoints but none is usable, unless `start_over` is true:
        nobody wants to retrain over existing records just because, say, a disk was not mounted.
        """
        plan = self._plan
        store = self._store
        if plan is None or store is None:
            return None
        if plan.load_from is not None and not (self._run and store.folder.entries()):
            # a run that has already saved resumes from its own checkpoints
            store = CheckpointStore(plan.load_from)
        step, rejected = store.folder.newest()
        for bad, problems in rejected.items():
            _logger.warning("%s cannot be used: %s", store.folder.where(bad), "; ".join(problems))
            self._event("checkpoint_rejected", step=bad, problems=problems)
        ranks.check_agreement({"resumes_from": step})
        problem = describe_problems(rejected)
        if step is not None:
            saved = store.load(step, state.collect() if isinstance(model, FSDPModule) else None)
            try:
                check_fit(store.folder.where(step), saved["model"], model, with_types=True)
            except SettingError as error:
                if self.follows_settings:
                    raise
                problem = str(error)
            else:
                state.restore(saved)
                self._saved_at = step if store is self._store else -1
                return step
        self._start_from_scratch(plan, store, problem, insists=start_over)
        return None

    def _start_from_scratch(
        self, plan: CheckpointPlan, store: CheckpointStore, problem: str, *, insists: bool
    ) -> None:
        """Raise if the run must not train from the first update; report it if a checkpoint was
        expected.
        """
        # An object store has no empty folders, so a URL always counts as existing.
        where = store.folder.directory
        is_there = not isinstance(where, Path) or where.is_dir()
        found = (
            problem
            or f"{where} {'holds none' if is_there else 'is not there: is a disk not mounted?'}"
        )
        if self._run is not None and store is self._store and not insists:
            saved = [
                event.get("step") for event in read_events(self._run.layout.root, "checkpoint")
            ]
            if saved:
                raise RunError(
                    f"{self._run.layout.root} saved checkpoints, the last after {saved[-1]}"
                    " steps, and none can be used now",
                    cause=found,
                    hint=(
                        "bring them back, name the folder they are in now with --checkpoints, or"
                        " train it again from the first step with --start-over (start_over=True)"
                    ),
                )
        if plan.must_load:
            raise SettingError(
                f"{NO_CHECKPOINT} from {where}, and it must be",
                cause=found,
                hint="check the folder, or train from scratch without force_load",
            )
        if problem or not self.follows_settings:
            _logger.warning(
                "%s from %s, training starts from scratch: %s", NO_CHECKPOINT, where, found
            )
            self._event("nothing_restored", folder=str(where), cause=found)

    def save(
        self, step: int, collect: Callable[[], dict[str, Any]], about: Mapping[str, Any]
    ) -> None:
        """Start saving, unless this step is already saved. Every rank must call it, since `collect`
        communicates. In a check nothing is saved: the folder may be outside the run.
        """
        if self._saver is None or self._saved_at == step or is_check():
            return
        state = collect()
        self._saved_at = step
        if ranks.rank() == 0 or is_sharded(state):
            self._saver.save(step, state, About(run_id=self._run_id, **about))

    def finished(self) -> list[Outcome]:
        """Return the saves completed since the last call. Failures are recorded as events."""
        outcomes = self._saver.finished() if self._saver is not None else []
        for outcome in outcomes:
            if outcome.error is None:
                self._event("checkpoint", step=outcome.step, removed=list(outcome.removed))
                continue
            failure = f"the checkpoint after {outcome.step} steps was not saved: {outcome.error}"
            _logger.warning("%s", failure)
            self._event("checkpoint_failed", step=outcome.step, error=outcome.error)
            self.failure = failure if self._raises else None
        return [outcome for outcome in outcomes if outcome.error is None]

    def wait(self) -> None:
        """Wait until the last save has ended."""
        if self._saver is not None:
            self._saver.wait()

    def raise_failure(self) -> None:
        """Raise on every rank if a save failed on any of them and must end the run."""
        sentences = [rank_value for rank_value in ranks.gather(self.failure) if rank_value]
        if sentences:
            raise SondeError(
                sentences[0],
                hint=(
                    'free the disk and start again: the run resumes; on_save_error="record" trains'
                    " on without it"
                ),
            )
