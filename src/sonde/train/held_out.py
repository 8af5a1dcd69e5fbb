"""The held-out data of a training: one source or several, and the callbacks that each concerns.

The trainer's own source, or that of the first callback that brings one, is the main one: it gives
the `loss` that patience and checkpoints look at, and every callback without data of its own is told
about it. A callback that brings another source is told about that one alone, at its own times; the
numbers that it adds appear beside those of the main one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from sonde.callbacks.base import Callback, Dispatcher
from sonde.callbacks.context import Context, ContextValues
from sonde.metrics import stack as metrics
from sonde.train.task import Task, evaluate, moved, untouched

Source: TypeAlias = Callable[[], Iterable[Any]]
"""Returns this rank's held-out batches, from the start at each call."""


@dataclass(slots=True, kw_only=True)
class HeldOut:
    """One source of held-out batches."""

    source: Source
    owners: Sequence[Callback]
    """The callbacks that brought this source; they say when it is evaluated."""
    listeners: Sequence[Callback]
    """The callbacks that are told about its evaluations."""
    is_main: bool
    """Whether its results are those of the training."""
    last_step: int = -1
    """Number of updates before its latest evaluation."""

    @property
    def tensors(self) -> list[str]:
        """The named values of each batch that its listeners need."""
        return sorted({name for callback in self.listeners for name in callback.evaluation_tensors})

    def is_due(self, moment: str, context: Context, *, asked: bool) -> bool:
        """Return whether to evaluate now: the same on every rank. `asked` is about the main one."""
        if self.last_step == context.step:
            return False
        if self.is_main and asked:
            return True
        return any(owner.wants_evaluation(moment, context) for owner in self.owners)


def held_out_data(own: Source | None, callbacks: Sequence[Callback]) -> list[HeldOut]:
    """Return the sources of held-out batches: those of callbacks in their order, the main one
    last.
    """
    owners: dict[Source, list[Callback]] = {}
    for callback in callbacks:
        if callback.evaluation_data is not None:
            owners.setdefault(callback.evaluation_data, []).append(callback)
    main = next(iter(owners), None) if own is None else own
    if main is None:
        return []
    others = {source: found for source, found in owners.items() if source is not main}
    elsewhere = {id(callback) for found in others.values() for callback in found}
    listeners = [callback for callback in callbacks if id(callback) not in elsewhere]
    return [
        *(
            HeldOut(source=source, owners=found, listeners=found, is_main=False)
            for source, found in others.items()
        ),
        HeldOut(source=main, owners=owners.get(main, []), listeners=listeners, is_main=True),
    ]


class Evaluated(NamedTuple):
    """What an evaluation found."""

    results: dict[str, Any]
    """`loss` and `weight` of the main data, and the numbers that callbacks added on this rank."""
    has_main: bool
    """Whether the main data were evaluated."""


class Evaluations:
    """Evaluates the model on the held-out data of a training, when they are due."""

    def __init__(
        self,
        held_out: Sequence[HeldOut],
        task: Task,
        device: torch.device,
        calls: Dispatcher,
        shown: ContextValues,
        context: Context,
    ) -> None:
        """`context` is what callbacks get; it shows the values of `shown`."""
        self._held_out = held_out
        self._task = task
        self._device = device
        self._calls = calls
        self._shown = shown
        self._context = context

    def resume(self, last_step: int) -> None:
        """Do not repeat the main evaluation that a restored state includes."""
        for held_out in self._held_out:
            if held_out.is_main:
                held_out.last_step = last_step

    def due(self, moment: str, *, asked: bool) -> list[HeldOut]:
        """Return the data to evaluate on at this hook; `asked` is about the main ones."""
        return [
            held_out
            for held_out in self._held_out
            if held_out.is_due(moment, self._context, asked=asked)
        ]

    def run(self, due: Sequence[HeldOut]) -> Evaluated:
        """Evaluate, and tell the callbacks."""
        found: dict[str, Any] = {}
        for held_out in due:
            found |= self._evaluate_on(held_out, found)
        return Evaluated(found, due[-1].is_main)

    def _evaluate_on(self, held_out: HeldOut, found: dict[str, Any]) -> dict[str, Any]:
        """Return the results on one source: the main one's with those `found` before, of another
        only what its callbacks added.
        """
        tell = partial(self._calls.call_these, held_out.listeners)
        tell("on_evaluation_start", self._context)
        # keeps values about held-out data out of the training metrics
        with metrics.aggregate(new_root=True):
            batches = (moved(batch, self._device) for batch in held_out.source())
            on_batch = partial(tell, "on_evaluation_batch", self._context)
            results = evaluate(self._task, batches, held_out.tensors, on_batch)
        held_out.last_step = self._context.step
        self._shown.metrics = {**found, **results} if held_out.is_main else results
        with untouched(self._task.model):
            tell("on_evaluation_end", self._context)
        if held_out.is_main:
            return dict(self._context.metrics)
        added = self._context.metrics.items()
        return {name: value for name, value in added if name not in results}
