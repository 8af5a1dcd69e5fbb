"""The last updates of a training, held so that their forwards can be run again: batches, and the generators and autocast of their moments.

A batch is held by reference, and the count of in-place changes that torch keeps for its tensors tells whether its owner has written over it: then
it is left out, never mistaken for another. Where a loop is found to write over its batches, they are copied instead.

Of the generators, torch's state costs 1.2 µs. Those of python and numpy cost 50 µs and more, so they are taken only where a step draws from them.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from sonde.flight.batch_tree import flatten, named_rows, tokens_of
from sonde.spikes.spike_records import digest_of_state, version_of

Loss: TypeAlias = float | Tensor
"""A loss: a number, or one on a device that nobody has waited for."""


class Autocast(NamedTuple):
    """What `torch.autocast` stood at."""

    enabled: bool
    dtype: torch.dtype
    cache: bool


class Moment(NamedTuple):
    """Everything outside of model and batch that a forward depends on."""

    cpu: Tensor
    """Torch's generator."""
    device: Tensor | None
    """That of the device, if there is one."""
    host: tuple[Any, Any] | None
    """Those of python and numpy, where they were taken."""
    autocast: Autocast | None
    """None: off."""


def take_moment(device_type: str, *, with_host: bool = False) -> Moment:
    """The moment that is now."""
    autocast = None
    if torch.is_autocast_enabled(device_type):
        autocast = Autocast(True, torch.get_autocast_dtype(device_type), torch.is_autocast_cache_enabled())
    return Moment(
        torch.default_generator.get_state(),
        None if device_type == "cpu" else torch.get_device_module(device_type).get_rng_state(),
        host_generators() if with_host else None,
        autocast,
    )


def host_generators() -> tuple[Any, Any]:
    """The states of python's and numpy's generators."""
    return random.getstate(), np.random.get_state()  # noqa: NPY002  the global one, which users' code draws from


def same_generators(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Have neither of them moved?"""
    return bool(one[0] == other[0] and one[1][2:] == other[1][2:] and np.array_equal(one[1][1], other[1][1]))


@contextmanager
def back_at(moment: Moment, device_type: str) -> Iterator[None]:
    """Within the block, generators and autocast begin as they were; the block leaves the generators where it brought them."""
    set_generators(moment, device_type)
    autocast = moment.autocast
    with torch.autocast(
        device_type,
        dtype=autocast.dtype if autocast else None,
        enabled=autocast is not None,
        cache_enabled=autocast.cache if autocast else None,
    ):
        yield


def set_generators(moment: Moment, device_type: str) -> None:
    """Put the generators where they were."""
    torch.default_generator.set_state(moment.cpu)
    if moment.device is not None and device_type != "cpu":
        torch.get_device_module(device_type).set_rng_state(moment.device)
    if moment.host is not None:
        random.setstate(moment.host[0])
        np.random.set_state(moment.host[1])  # noqa: NPY002  the user's own generator, put back


def noted(loss: Tensor) -> Loss:
    """A loss without its graph."""
    return loss.item() if loss.is_cpu else loss.detach()


class RowMeans(NamedTuple):
    """The rows of one micro-batch."""

    losses: Any
    """The mean loss of each, 0 of a row without targets: an array, or a tensor on a device."""
    counts: Any
    """How many targets it has."""


@final
class Forward:
    """One call of the model: what it was called with, and what loss came out."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], moment: Moment) -> None:
        self.args = args
        self.kwargs = kwargs
        self.moment = moment
        self.loss: Loss | None = None


@final
class MicroBatch:
    """One batch on its way through the step function, or through the model, and what is needed to know later that it is still the same."""

    def __init__(
        self, batch: Any, moment: Moment, *, last: bool | None, names: Any = None, copied: bool = False
    ) -> None:
        """`copied`: copy its tensors, since their owner may write over them before they are written to a file."""
        tensors: list[Tensor] = []
        self.batch = batch
        self.tree = flatten(batch, tensors)
        self.tensors = tensors
        tokens = tokens_of(batch)
        self.num_tokens = 1 if tokens is None else tokens.numel()
        rows = tokens if tokens is not None else next((one for one in tensors if one.dim()), None)
        self.num_rows = 0 if rows is None else rows.shape[0]
        self._versions = [version_of(one) for one in tensors]
        self._copies = [one.detach().to("cpu", copy=True) for one in tensors] if copied else None
        self.moment = moment
        self.last = last
        """What the step function was told; None: nothing."""
        self.names = names
        """Names of its samples, if the user gave some."""
        self.forwards: list[Forward] = []
        self.losses: list[Loss] = []
        """What the user said the loss is."""
        self.rows: RowMeans | None = None
        """The losses of its rows, where they are wanted and known."""

    def seen_losses(self) -> list[Loss]:
        """Its losses: what the user said they are, or what the model returned."""
        return self.losses or [one.loss for one in self.forwards if one.loss is not None]

    def is_unchanged(self) -> bool:
        """Has nobody written to it since?"""
        return [version_of(one) for one in self.tensors] == self._versions

    def is_untouched(self) -> bool:
        """Is a batch that was copied still the same, also where torch cannot know that it was written to?"""
        pairs = zip(self.to_write(), self.tensors, strict=True)
        return self.is_unchanged() and all(torch.equal(copy, one.detach().cpu()) for copy, one in pairs)

    def to_write(self) -> list[Tensor]:
        """What is to be written to a file: copies, or its own tensors; ask `is_whole` after they have been read."""
        return self.tensors if self._copies is None else self._copies

    def is_whole(self) -> bool:
        """Is what `to_write` gives still what the batch was?"""
        return self._copies is not None or self.is_unchanged()


@final
class Update:
    """All that belongs to one update."""

    loss: float | None = None
    """The mean over the ranks; None until it is known."""
    own_loss: float | None = None
    """That of this rank."""
    lr = float("nan")
    rates: Sequence[float] = ()
    """The learning rate of every group of parameters."""
    grad_norm: float | None = None
    num_tokens = 0
    skipped: str | None = None
    is_moved = False
    """Has the optimiser made its step?"""
    is_done = False
    """Is it over?"""
    autocast: torch.dtype | None = None
    """What autocast had its forwards made in."""

    def __init__(self, step: int, *, had_gradients: bool) -> None:
        self.step = step
        self.micro: list[MicroBatch] = []
        self.had_gradients = had_gradients
        """Were gradients of the update before still there when it began?"""

    def add(self, micro: MicroBatch) -> None:
        """Another of its micro-batches begins."""
        self.micro.append(micro)
        self.num_tokens += micro.num_tokens

    def note_rates(self, optimizer: torch.optim.Optimizer) -> None:
        """Its learning rates are those of now."""
        self.rates = rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.lr = rates[0]

    def seen_losses(self) -> list[Loss]:
        """The losses of its micro-batches."""
        micro = self.micro
        return micro[0].seen_losses() if len(micro) == 1 else [loss for one in micro for loss in one.seen_losses()]

    def names(self) -> list[tuple[str, int]]:
        """The names of its rows."""
        return [name for one in self.micro for name in named_rows(one.names, one.batch)]

    def random_numbers(self) -> str | None:
        """What tells its random numbers from others."""
        return digest_of_state(self.micro[0].moment.cpu)

    @property
    def loss_from(self) -> str:
        """Who said what the loss is: the user, the model, or nobody before the step function returned."""
        if any(one.losses for one in self.micro):
            return "told"
        return "returned" if any(one.seen_losses() for one in self.micro) else "step"

    @property
    def precision(self) -> str | None:
        """The name of what autocast had its forwards made in; None: nothing."""
        return None if self.autocast is None else str(self.autocast).removeprefix("torch.")
