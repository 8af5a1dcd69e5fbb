"""The moments of a training run, and the base class of everything that watches one.

    on_setup                                  nothing restored yet: a callback may say where checkpoints are
    on_run_start                              state restored, nothing trained yet; then evaluate, if asked
    for each epoch:
        on_epoch_start
        for each update:
            on_step_start                     the batches of this update are there
            for each micro-batch: forward, backward
            on_backward_end                   gradients summed over micro-batches and ranks, divided, clipped
            optimizer.step
            on_step_end                       `context.step` updates have been made
            if asked: evaluate                on_evaluation_start, on_evaluation_batch …, on_evaluation_end
            if asked: save a checkpoint       on_checkpoint
        on_epoch_end                          then the same two questions
    on_run_end                                after the last evaluation and the last checkpoint
    on_exception                              instead of the rest, when something raised

On one step the callbacks are called in the order EVALUATE, SAVE, LOG (`Callback.order`), and in the order given among
equals; an evaluation that the first ask for is done before the second are called, so a checkpoint knows its result and a
log line both. The state itself is copied when the last has been called: what any of them learnt on this step is in it, and a resumed
run repeats nothing.

A callback watches. It gets a read-only context and never the trainer; it may ask to stop, to save or to evaluate, and the
trainer does. There is one evaluation and one folder of checkpoints, whoever asks. What raises inside a callback is reported once, recorded, and the callback is quarantined: training goes on without it. One that guards
(`Callback.critical`) is the exception: its error ends the run.

`Dispatcher` calls the callbacks. A call costs about 0.2 µs for each callback that overrides the method.
"""

import enum
import logging
from abc import ABC
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, final

from sonde.checkpoint.folder import Keep
from sonde.errors import SettingError

_logger = logging.getLogger("sonde")
Moment: TypeAlias = Callable[..., None]


@final
class Order(enum.IntEnum):
    """When a callback is called among the others of the same moment."""

    EVALUATE = 0
    """Asks for evaluations."""
    SAVE = 1
    """Asks for checkpoints."""
    LOG = 2
    """Writes down what happened."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """Where a training's checkpoints are, and how they are kept."""

    folder: Path | str
    """Where they are saved: a folder, or the URL of one."""
    load_from: Path | None = None
    """Where the first start restores from; None is `folder`."""
    must_load: bool = False
    """Is it an error when nothing can be restored?"""
    saves: bool = True
    """Save at all? False only restores."""
    keep: Keep = field(default_factory=Keep)
    """What stays."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """What a callback may see and ask for. Read-only: only the trainer changes what it shows.

    One object lives for a whole training; what it shows is valid during the call.
    """

    rank: int = 0
    """This process's number among the ranks."""
    world_size: int = 1
    """The number of ranks."""
    run_directory: Path | None = None
    """The run directory, when the training has one."""
    step: int = 0
    """Updates made so far: 0 before the first, 1 at the end of the first step."""
    epoch: int = 1
    """The number of the current epoch, counted from 1."""
    num_epochs_done: int = 0
    """Epochs completed."""
    lr: float = 0.0
    """The learning rate of the last update."""
    tensors: Mapping[str, Any] = field(default_factory=dict)
    """The named values the task gave for the last micro-batch; `loss` is always among them."""
    weight: Any = 0
    """Target tokens of the last update, over all ranks."""
    grad_norm: Any = None
    """Global gradient norm of the last update before clipping; None when it was not computed."""
    step_seconds: float = 0.0
    """Wall time of the last update."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """What the task logged in the last update (`metrics.log_scalar`), by name.

    A callback adds to an update in the same way, in `on_step_end`: it then stands in the log and in the update's record."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """After an evaluation: its results. At other moments: those of the last one."""
    outputs: Sequence[Any] = ()
    """What the task gave in the last update on this rank: a `StepOutput` for each micro-batch."""
    distrusted: str | None = None
    """Why the weights are suspect; None while nobody said so."""
    checkpoint_plan: CheckpointPlan | None = None
    """Where a callback said that checkpoints are."""
    requests: dict[str, str] = field(default_factory=dict)
    """What was asked for and is not done yet, with the reason."""
    closing: list[Any] = field(default_factory=list)
    """What is closed at the end."""

    @property
    def sample_ids(self) -> Sequence[Any]:
        """The samples of the last update on this rank."""
        return [sample for output in self.outputs for sample in output.sample_ids]

    @property
    def sample_losses(self) -> Sequence[Any]:
        """The loss of each of them, where the task gives it: a tensor for each micro-batch, or None."""
        return [output.sample_losses for output in self.outputs]

    @property
    def token_losses(self) -> Sequence[Any]:
        """The loss of each token, where the task gives it: a tensor for each micro-batch, or None."""
        return [output.token_losses for output in self.outputs]

    @property
    def token_counts(self) -> Sequence[Any]:
        """The target tokens of each sample, where the task gives them: a tensor for each micro-batch, or None."""
        return [output.token_counts for output in self.outputs]

    def show(self, **values: Any) -> None:
        """Show something else from now on. For the trainer."""
        self.__dict__.update(values)

    def distrust(self, reason: str | None) -> None:
        """Mark the checkpoints from now on as suspect, so that they push no good one out; None trusts again."""
        self.show(distrusted=reason)

    def plan_checkpoints(self, plan: CheckpointPlan) -> None:
        """In `on_setup`: where to restore from and save to. The trainer then saves when asked, and at the end."""
        if self.checkpoint_plan is not None:
            raise SettingError(
                f"two callbacks say where checkpoints are: {self.checkpoint_plan.folder} and {plan.folder}",
                hint="use one CheckpointCallback",
            )
        self.show(checkpoint_plan=plan)

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """In `on_evaluation_end`: what else the evaluation found; the checkpoint saved next knows it too."""
        self.show(metrics={**self.metrics, **metrics})

    def close_at_end(self, resource: Any) -> None:
        """Have `resource.close()` called once, after the last moment of every callback, whoever else asks for it."""
        if not any(resource is other for other in self.closing):
            self.closing.append(resource)

    def ask_to_stop(self, reason: str) -> None:
        """End the run after this step, with an evaluation and a checkpoint."""
        self.requests.setdefault("stop", reason)

    def ask_to_give_up(self, reason: str) -> None:
        """End the run after this step without an evaluation and without a checkpoint: its state is not worth keeping."""
        self.requests.setdefault("stop", reason)
        self.requests.setdefault("give up", reason)

    def ask_to_save(self, reason: str = "asked") -> None:
        """Save a checkpoint after this step."""
        self.requests.setdefault("save", reason)

    def ask_to_evaluate(self, reason: str = "asked") -> None:
        """Evaluate after this step."""
        self.requests.setdefault("evaluate", reason)


class Callback(ABC):
    """Base of all callbacks: override the moments you need. The methods you leave alone cost nothing."""

    order: ClassVar[Order] = Order.LOG
    """When this callback is called among the others."""
    critical: ClassVar[bool] = False
    """Does an error in here end the run? False: it is reported once and the callback is quarantined."""
    asks: ClassVar[bool] = True
    """May it ask to stop, save or evaluate? Where none may, several ranks are spared three small exchanges per update."""

    evaluation_tensors: Sequence[str] = ()
    """The named values of each evaluation batch that it wants, gathered over the ranks."""
    evaluation_data: Callable[[], Iterable[Any]] | None = None
    """Held-out batches that it brings; the trainer's own when None."""

    def on_setup(self, context: Context) -> None:
        """Nothing is restored yet."""

    def on_run_start(self, context: Context) -> None:
        """Training is about to start; a resumed run has its state back."""

    def on_epoch_start(self, context: Context) -> None:
        """An epoch begins, or goes on after a resume."""

    def on_step_start(self, context: Context) -> None:
        """An update begins."""

    def on_backward_end(self, context: Context) -> None:
        """The gradients are final; the optimiser has not moved yet."""

    def on_step_end(self, context: Context) -> None:
        """An update was made, or skipped for a reason that is recorded."""

    def on_epoch_end(self, context: Context) -> None:
        """The data of an epoch is exhausted."""

    def on_evaluation_start(self, context: Context) -> None:
        """An evaluation begins."""

    def on_evaluation_batch(self, context: Context, values: Mapping[str, Any]) -> None:
        """One evaluation batch was computed on each rank that had one: `evaluation_tensors`, a list of their values each."""

    def on_evaluation_end(self, context: Context) -> None:
        """An evaluation is over: `context.metrics` has its results."""

    def on_checkpoint(self, context: Context, path: Path | str) -> None:
        """A checkpoint is complete at `path`, a folder or a URL."""

    def on_exception(self, context: Context, error: BaseException) -> None:
        """Something raised, and the run is ending."""

    def on_run_end(self, context: Context) -> None:
        """Training is over."""

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs: plain data and tensors. Part of every checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back from `state_dict`."""


@final
class Dispatcher:
    """Calls the callbacks of each moment, in order, and keeps a failing one from hurting training.

    Only methods that a callback overrides are called: a moment nobody watches costs a dictionary lookup.
    """

    def __init__(self, callbacks: Sequence[Callback], event: Callable[..., None]) -> None:
        """`event` records what happens to the run."""
        self.callbacks = sorted(callbacks, key=lambda callback: callback.order)
        self.may_ask = any(callback.asks for callback in callbacks)
        """Is there one that may ask for something? The same on every rank, whoever is quarantined where."""
        self.orders = {callback.order for callback in callbacks}
        """Those that some callback has."""
        self._event = event
        self._quarantined: set[int] = set()
        self._table: dict[tuple[str, Order | None], list[tuple[Callback, Moment]]] = {}

    def call(self, moment: str, *arguments: object, order: Order | None = None) -> None:
        """Call one moment, for all callbacks or for those of one `order`."""
        key = (moment, order)
        table = self._table.get(key)
        if table is None:
            table = self._table[key] = self._listeners(moment, order)
        for callback, method in table:
            try:
                method(*arguments)
            except Exception as error:  # a watcher must not end a run: architecture.md, rule 3
                if callback.critical:
                    raise
                self._quarantine(callback, moment, error)

    def close(self, context: Context) -> None:
        """Close what the callbacks shared; after their last moment."""
        for resource in context.closing:
            try:
                resource.close()
            except Exception as error:  # a writer must not end a run either
                _logger.warning("%s could not be closed", type(resource).__name__, exc_info=error)
        context.closing.clear()

    def _listeners(self, moment: str, order: Order | None) -> list[tuple[Callback, Moment]]:
        nothing = getattr(Callback, moment)
        return [
            (callback, getattr(callback, moment))
            for callback in self.callbacks
            if id(callback) not in self._quarantined
            and order in (None, callback.order)
            and getattr(type(callback), moment) is not nothing
        ]

    def _quarantine(self, callback: Callback, moment: str, error: Exception) -> None:
        self._quarantined.add(id(callback))
        self._table = {}
        name, text = type(callback).__name__, f"{type(error).__name__}: {error}"
        _logger.warning("%s raised in %s and is switched off; training goes on", name, moment, exc_info=error)
        self._event("quarantine", callback=name, moment=moment, error=text)
