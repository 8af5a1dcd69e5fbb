"""The last updates of a training, held so that their forwards can be run again: batches, random numbers, autocast.

A batch is held by reference, and the count of in-place changes that torch keeps for its tensors tells whether its owner has written over it: then
it is left out, never mistaken for another. Where a loop is found to write over its batches, they are copied instead.
"""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from sonde.flight.batch_tree import flatten
from sonde.flight.moment import Moment
from sonde.flight.row_losses import RowMeans


@final
class HeldBatch:
    """A batch, and what is needed to know later that it is still the same."""

    __slots__ = ("_copies", "_leaves", "_versions", "batch", "tree")

    def __init__(self, batch: Any, *, copied: bool) -> None:
        """`copied`: copy its tensors, since their owner may write over them before they are written to a file."""
        leaves: list[Tensor] = []
        self.batch = batch
        self.tree = flatten(batch, leaves)
        self._leaves = leaves
        self._versions = [version_of(leaf) for leaf in leaves]
        self._copies = [leaf.detach().to("cpu", copy=True) for leaf in leaves] if copied else leaves

    def is_unchanged(self) -> bool:
        """Has nobody written to it since?"""
        return all(version_of(leaf) == then for leaf, then in zip(self._leaves, self._versions, strict=True))

    def is_untouched(self) -> bool:
        """Is a batch that was copied still the same, also where torch cannot know that it was written to?"""
        pairs = zip(self._copies, self._leaves, strict=True)
        return self.is_unchanged() and all(torch.equal(copy, leaf.detach().cpu()) for copy, leaf in pairs)

    def tensors(self) -> list[Tensor] | None:
        """What is to be written, on the CPU and nobody else's; None when its owner has written over it meanwhile."""
        if self._copies is not self._leaves:
            return self._copies
        found = [leaf.detach().to("cpu", copy=True) for leaf in self._leaves]
        return found if self.is_unchanged() else None

    def let_go(self) -> None:
        """The copies are not needed any more."""
        self._copies = self._leaves

    @property
    def num_bytes(self) -> int:
        """The size of its tensors."""
        return sum(leaf.nbytes for leaf in self._leaves)


@final
class Forward:
    """One call of the model: what it was called with, and what loss came out."""

    __slots__ = ("args", "kwargs", "loss", "moment")

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], moment: Moment) -> None:
        self.args = args
        self.kwargs = kwargs
        self.moment = moment
        self.loss: Tensor | None = None


@final
class MicroBatch:
    """One batch on its way through the step function, or through the model."""

    __slots__ = ("forwards", "held", "last", "losses", "moment", "names", "rows")

    def __init__(self, held: HeldBatch, moment: Moment, *, last: bool | None, names: Any = None) -> None:
        self.held = held
        self.moment = moment
        self.last = last
        """What the step function was told; None: nothing."""
        self.names = names
        """Names of its samples, if the user gave some."""
        self.forwards: list[Forward] = []
        self.losses: list[Tensor] = []
        """What the user said the loss is."""
        self.rows: RowMeans | None = None
        """The losses of its rows, where they are wanted and known."""

    def seen_losses(self) -> list[Tensor]:
        """Its losses: what the user said they are, or what the model returned."""
        return self.losses or [one.loss for one in self.forwards if one.loss is not None]


@final
class Update:
    """All that belongs to one update."""

    __slots__ = (
        "grad_norm",
        "had_gradients",
        "is_done",
        "is_moved",
        "loss",
        "lr",
        "micro",
        "num_tokens",
        "own_loss",
        "rates",
        "skipped",
        "step",
    )

    def __init__(self, step: int, *, had_gradients: bool) -> None:
        self.step = step
        self.micro: list[MicroBatch] = []
        self.loss: float | None = None
        """The mean over the ranks; None until it is known."""
        self.own_loss: float | None = None
        """That of this rank."""
        self.lr = float("nan")
        self.rates: list[float] = []
        """The learning rate of every group of parameters."""
        self.grad_norm: float | None = None
        self.num_tokens = 0
        self.skipped: str | None = None
        self.had_gradients = had_gradients
        """Were gradients of the update before still there when it began?"""
        self.is_moved = False
        """Has the optimiser made its step?"""
        self.is_done = False
        """Is it over?"""

    @property
    def loss_from(self) -> str:
        """Who said what the loss is: the user, the model, or nobody before the step function returned."""
        if any(one.losses for one in self.micro):
            return "told"
        return "returned" if any(one.seen_losses() for one in self.micro) else "step"

    @property
    def precision(self) -> str | None:
        """What autocast had the first forward made in; None: nothing."""
        moments = [forward.moment for one in self.micro for forward in one.forwards]
        autocast = moments[0].autocast if moments else None
        return None if autocast is None else str(autocast.dtype).removeprefix("torch.")


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place."""
    try:
        return tensor._version
    except RuntimeError:  # tensors of inference mode keep no count
        return -1
