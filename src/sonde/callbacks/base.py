"""The hooks of a training run, and the base class of all callbacks.

    on_setup                                  nothing restored yet; a callback may set where
                                              checkpoints are
    on_run_start                              state restored, nothing trained yet; then evaluate if
                                              requested
    for each epoch:
        on_epoch_start
        for each update:
            on_step_start                     the batches of this update are ready
            for each micro-batch: forward, backward
            on_backward_end                   gradients summed over micro-batches and ranks,
                                              divided, clipped
            optimizer.step
            on_step_end                       `context.step` updates have been made
            if requested: evaluate            on_evaluation_start, on_evaluation_batch …,
                                              on_evaluation_end
            if requested: save a checkpoint   on_checkpoint
        on_epoch_end                          then evaluate and save if requested
    on_run_end                                after the last evaluation and the last checkpoint
    on_exception                              instead of the rest, after an error

Callbacks of one step are called in the order EVALUATE, SAVE, LOG (`Callback.order`), and in the
given order within each. An evaluation requested by the first group runs before the second is
called, so checkpoints and log lines include its result. The state is copied after the last
callback, so it includes everything they recorded on this step, and a resumed run repeats nothing.

A callback only observes. It gets a read-only context and never the trainer; it may ask to stop,
save or evaluate, and the trainer does so. There is one checkpoint folder, and one evaluation of the
trainer's data, whoever asks; a callback may bring data of its own (`evaluation_data`). An error
inside a callback is reported once and recorded, the callback is quarantined, and training continues
without it. The exception is a `critical` callback, whose error ends the run.

`Dispatcher` calls the callbacks. A call costs about 0.2 µs for each callback that overrides the
method.
"""

import enum
import logging
from abc import ABC
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from sonde.callbacks.context import Context
from sonde.errors import SettingError, did_you_mean

_logger = logging.getLogger("sonde")
Moment: TypeAlias = Callable[..., None]


class Order(enum.IntEnum):
    """When a callback is called relative to others at the same hook."""

    EVALUATE = 0
    """For callbacks that ask for evaluations."""
    SAVE = 1
    """For callbacks that ask for checkpoints."""
    LOG = 2
    """For callbacks that log what happened."""


class Callback(ABC):
    """Base class of all callbacks: override the hooks you need. Hooks that are not overridden cost
    nothing.

    ```python
    from sonde.callbacks import Callback

    class StopWhenGood(Callback):
        def on_step_end(self, context):
            if context.tensors["loss"] < 0.05:
                context.ask_to_stop("the loss is good")
    ```

    Pass it on: `trainer.train(stop=…, callbacks=[StopWhenGood()])`.
    """

    order: ClassVar[Order] = Order.LOG
    """When this callback is called relative to the others."""
    critical: ClassVar[bool] = False
    """Whether an error in this callback ends the run. If not, it is reported once and the callback
    is quarantined.
    """
    asks: ClassVar[bool] = True
    """Whether it may ask to stop, save or evaluate. If no callback may, several ranks save three
    small exchanges per update.
    """
    only_rank_0: ClassVar[bool] = False
    """Whether it is called on rank 0 only."""

    evaluation_tensors: Sequence[str] = ()
    """Named values of each evaluation batch that it needs, gathered over the ranks."""
    evaluation_data: Callable[[], Iterable[Any]] | None = None
    """Returns held-out batches; None uses the trainer's own. Several callbacks may bring their own:
    each is then told about the evaluation of its own data alone.
    """

    def __init_subclass__(cls) -> None:
        """Refuse a method that is named like a hook but is none, because it would never be
        called.
        """
        super().__init_subclass__()
        hooks = [name for name in vars(Callback) if name.startswith("on_")]
        for name, value in vars(cls).items():
            if name.startswith("on_") and callable(value) and name not in hooks:
                hint = did_you_mean(name, hooks, f"the hooks are {', '.join(hooks)}")
                raise SettingError(
                    f"{cls.__name__}.{name} is not a hook of a training run", hint=hint
                )

    def wants_evaluation(self, moment: str, context: Context) -> bool:
        """For a callback with `evaluation_data`: return whether to evaluate on it at this hook
        ("on_run_start", "on_step_end", "on_epoch_end" or "on_run_end"). Must be the same on every
        rank, so it is asked on all of them.
        """
        return moment == "on_run_end"

    def on_setup(self, context: Context) -> None:
        """Called before anything is restored."""

    def on_run_start(self, context: Context) -> None:
        """Called before training starts; a resumed run has its state restored."""

    def on_epoch_start(self, context: Context) -> None:
        """Called when an epoch begins or resumes."""

    def on_step_start(self, context: Context) -> None:
        """Called before an update."""

    def on_backward_end(self, context: Context) -> None:
        """Called when the gradients are final, before the optimizer step."""

    def on_step_end(self, context: Context) -> None:
        """Called after an update, even if it was skipped."""

    def on_epoch_end(self, context: Context) -> None:
        """Called when the data of an epoch is exhausted."""

    def on_evaluation_start(self, context: Context) -> None:
        """Called before an evaluation."""

    def on_evaluation_batch(self, context: Context, values: Mapping[str, Any]) -> None:
        """Called per evaluation batch; `values` has a list for each of `evaluation_tensors`, one
        entry per rank with a batch.
        """

    def on_evaluation_end(self, context: Context) -> None:
        """Called after an evaluation, whose results are in `context.metrics`."""

    def on_checkpoint(self, context: Context, path: Path | str) -> None:
        """Called when a checkpoint is complete at `path`, a folder or a URL."""

    def on_exception(self, context: Context, error: BaseException) -> None:
        """Called when an error ends the run."""

    def on_run_end(self, context: Context) -> None:
        """Called when training is over."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs, as plain data and tensors. Part of every
        checkpoint.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""


class Dispatcher:
    """Calls the callbacks of each hook in order, and keeps a failing one from affecting training.

    Only overridden methods are called: a hook that nobody overrides costs a dictionary lookup.
    """

    def __init__(
        self, callbacks: Sequence[Callback], event: Callable[..., None], *, rank: int = 0
    ) -> None:
        """`event` records events of the run."""
        here = [callback for callback in callbacks if rank == 0 or not callback.only_rank_0]
        self.callbacks = sorted(here, key=lambda callback: callback.order)
        self.may_ask = any(callback.asks for callback in callbacks)
        """Whether any callback may ask to stop, save or evaluate. Quarantine does not change it, so
        all ranks agree.
        """
        self.orders = {callback.order for callback in callbacks}
        """The orders that occur among the callbacks."""
        self._event = event
        self._quarantined: set[int] = set()
        self._table: dict[tuple[str, Order | None], list[tuple[Callback, Moment]]] = {}

    def call(self, moment: str, *arguments: object, order: Order | None = None) -> None:
        """Call one hook for all callbacks, or for those of one `order`."""
        key = (moment, order)
        table = self._table.get(key)
        if table is None:
            table = self._table[key] = self._listeners(moment, order)
        self._call(table, moment, arguments)

    def call_these(self, callbacks: Sequence[Callback], moment: str, *arguments: object) -> None:
        """Call one hook for some of the callbacks, in order."""
        chosen = set(map(id, callbacks))
        table = [pair for pair in self._listeners(moment, None) if id(pair[0]) in chosen]
        self._call(table, moment, arguments)

    def _call(
        self, table: list[tuple[Callback, Moment]], moment: str, arguments: tuple[object, ...]
    ) -> None:
        for callback, method in table:
            try:
                method(*arguments)
            except Exception as error:  # a callback must not end a run: architecture.md, rule 3
                if callback.critical:
                    raise
                self._quarantine(callback, moment, error)

    def close(self, context: Context) -> None:
        """Close the resources that callbacks shared, after their last hook."""
        for resource in context.closing:
            try:
                resource.close()
            except Exception as error:  # nor must a writer
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
        name = type(callback).__name__
        text = f"{type(error).__name__}: {error}"
        _logger.warning(
            "%s raised in %s and is switched off; training goes on", name, moment, exc_info=error
        )
        self._event("quarantine", callback=name, moment=moment, error=text)
