"""The last updates of a training, held so that their forward passes can be repeated: batches, generators and autocast.

A batch is held by reference, and torch's count of in-place changes of its tensors shows whether its owner has
overwritten it; then it is left out, never mistaken for another. If a loop is found to overwrite its batches, they are
copied instead.

Getting torch's generator state costs 1.2 µs. Those of Python and numpy cost 50 µs and more, so they are recorded only
if a step draws from them.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sonde.flight.batch_tree import flatten, named_rows, tokens_of
from sonde.spikes.spike_records import digest_of_state, version_of

Host: TypeAlias = tuple[tuple[int, tuple[int, ...], float | None], tuple[str, bytes, int, int, float]]
"""The states of Python's and numpy's generators, as plain data."""
Autocast: TypeAlias = tuple[torch.dtype, bool]
"""The settings of `torch.autocast`: its precision, and whether it caches weights."""
Loss: TypeAlias = float | Tensor
"""A loss: a number, or a tensor on a device that has not been synchronized."""


class Moment(NamedTuple):
    """Everything besides the model and the batch that a forward pass depends on."""

    cpu: Tensor
    """The state of torch's CPU generator."""
    device: Tensor | None
    """The state of the device's generator, if there is a device."""
    host: Host | None
    """The states of Python's and numpy's generators as plain data, if they were recorded."""
    autocast: Autocast | None
    """The autocast settings; None if off."""


def take_moment(device_type: str, *, with_host: bool = False) -> Moment:
    """Record the current moment."""
    autocast = None
    if torch.is_autocast_enabled(device_type):
        autocast = torch.get_autocast_dtype(device_type), torch.is_autocast_cache_enabled()
    return Moment(
        torch.default_generator.get_state(),
        None if device_type == "cpu" else torch.get_device_module(device_type).get_rng_state(),
        host_generators() if with_host else None,
        autocast,
    )


def host_generators() -> Host:
    """Return the states of Python's and numpy's generators as plain data."""
    numpy: Any = np.random.get_state()  # noqa: NPY002  the global one, which users' code draws from
    return random.getstate(), (numpy[0], numpy[1].tobytes(), *numpy[2:])


@contextmanager
def back_at(moment: Moment, device_type: str) -> Iterator[None]:
    """Set generators and autocast to a recorded moment within the block. The generators are not restored afterwards."""
    set_generators(moment, device_type)
    dtype, caches = moment.autocast or (None, None)
    with torch.autocast(device_type, dtype=dtype, enabled=dtype is not None, cache_enabled=caches):
        yield


def set_generators(moment: Moment, device_type: str) -> None:
    """Set the generators to their recorded states."""
    torch.default_generator.set_state(moment.cpu)
    if moment.device is not None and device_type != "cpu":
        torch.get_device_module(device_type).set_rng_state(moment.device)
    if moment.host is not None:
        python, (kind, key, position, has_gauss, cached) = moment.host
        random.setstate(python)
        np.random.set_state((kind, np.frombuffer(key, np.uint32), position, has_gauss, cached))  # noqa: NPY002  restores the user's global generator


def noted(loss: Tensor) -> Loss:
    """Return a loss detached from its graph."""
    return loss.item() if loss.is_cpu else loss.detach()


class RowMeans(NamedTuple):
    """The mean losses of the rows of a micro-batch."""

    losses: Any
    """The mean loss of each row, 0 for a row without targets: an array, or a tensor on a device."""
    counts: Any
    """The number of targets in each row."""


class Forward:
    """One call of the model: its arguments and the resulting loss."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], moment: Moment) -> None:
        self.args = args
        self.kwargs = kwargs
        self.moment = moment
        self.loss: Loss | None = None


class MicroBatch:
    """A batch processed by the step function or the model, with what is needed to check later that it is unchanged."""

    def __init__(
        self, batch: Any, moment: Moment, *, last: bool | None, names: Any = None, copied: bool = False
    ) -> None:
        """`copied`: copy its tensors, because their owner may overwrite them before they are written to a file."""
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
        """The `last` argument that the step function received; None if it received none."""
        self.names = names
        """The names of its samples, if the user gave some."""
        self.forwards: list[Forward] = []
        self.losses: list[Loss] = []
        """The losses that the user reported."""
        self.rows: RowMeans | None = None
        """The losses of its rows, if they are wanted and known."""

    def seen_losses(self) -> list[Loss]:
        """Return its losses: those that the user reported, otherwise those that the model returned."""
        return self.losses or [one.loss for one in self.forwards if one.loss is not None]

    def is_unchanged(self) -> bool:
        """Return whether the tensors have not been modified since."""
        return [version_of(one) for one in self.tensors] == self._versions

    def is_untouched(self) -> bool:
        """Return whether a copied batch is still the same, even if it was changed in a way that torch cannot detect."""
        pairs = zip(self.to_write(), self.tensors, strict=True)
        return self.is_unchanged() and all(torch.equal(copy, one.detach().cpu()) for copy, one in pairs)

    def to_write(self) -> list[Tensor]:
        """Return the tensors to write to a file: copies, or its own; check `is_whole` after reading them."""
        return self.tensors if self._copies is None else self._copies

    def is_whole(self) -> bool:
        """Return whether the tensors from `to_write` are still those of the batch."""
        return self._copies is not None or self.is_unchanged()


class Update:
    """Everything that belongs to one update."""

    loss: float | None = None
    """The mean loss over the ranks; None until it is known."""
    own_loss: float | None = None
    """The loss of this rank."""
    lr = float("nan")
    rates: Sequence[float] = ()
    """The learning rate of every parameter group."""
    grad_norm: float | None = None
    num_tokens = 0
    skipped: str | None = None
    is_moved = False
    """Whether the optimizer has made its step."""
    is_done = False
    """Whether the update is finished."""
    autocast: torch.dtype | None = None
    """The autocast precision of its forward passes."""

    def __init__(self, step: int, *, had_gradients: bool) -> None:
        self.step = step
        self.micro: list[MicroBatch] = []
        self.had_gradients = had_gradients
        """Whether gradients of the previous update were still there when it began."""

    def add(self, micro: MicroBatch) -> None:
        """Add another micro-batch."""
        self.micro.append(micro)
        self.num_tokens += micro.num_tokens

    def note_rates(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the current learning rates."""
        self.rates = rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.lr = rates[0]

    def seen_losses(self) -> list[Loss]:
        """Return the losses of its micro-batches."""
        micro = self.micro
        return micro[0].seen_losses() if len(micro) == 1 else [loss for one in micro for loss in one.seen_losses()]

    def names(self) -> list[tuple[str, int]]:
        """Return the names of its rows."""
        return [name for one in self.micro for name in named_rows(one.names, one.batch)]

    def random_numbers(self) -> str | None:
        """Return a digest that identifies its random numbers."""
        return digest_of_state(self.micro[0].moment.cpu)

    @property
    def loss_from(self) -> str:
        """Where the loss came from: the user, the model, or only the return value of the step function."""
        if any(one.losses for one in self.micro):
            return "told"
        return "returned" if any(one.seen_losses() for one in self.micro) else "step"

    @property
    def precision(self) -> str | None:
        """The name of the autocast precision of its forward passes; None without autocast."""
        return None if self.autocast is None else str(self.autocast).removeprefix("torch.")
