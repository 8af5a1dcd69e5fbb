"""One update on its way: its micro-batches, what is known of its loss, and how far it has come.

    COLLECTING ── gradients are there ──> READY ── the optimizer has moved ──> APPLIED
         │                                  │
         └── an exception, or a scaler ─────┴──> never applied: failed or skipped

Only `Pipeline` (pipeline.py) changes an update. A batch is held by reference; torch's count of
in-place changes of its tensors shows whether its owner has overwritten it. Then it is left out,
never mistaken for another. If a loop is found to overwrite its batches, they are copied instead.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from sonde.log.device import Copy
from sonde.recorder.batch_tree import BatchTree, flatten, named_rows, num_rows, tokens_of
from sonde.recorder.memory import bytes_of
from sonde.recorder.moment import Moment
from sonde.spikes.generator_digests import digest_of_state
from sonde.spikes.held_values import version_of

Loss: TypeAlias = float | Tensor
"""A loss: a number, or a tensor on a device that has not been synchronized."""


def noted(loss: Tensor | float) -> Loss:
    """Return a loss detached from its graph."""
    if not isinstance(loss, Tensor):
        return float(loss)
    return loss.item() if loss.is_cpu else loss.detach()


class RowMeans(NamedTuple):
    """The mean losses of the rows of a micro-batch."""

    losses: Any
    """The mean loss of each row, 0 for a row without targets: an array, or a tensor on a device."""
    counts: Any
    """The number of targets in each row."""
    targets: Any = None
    """The targets of each row: an array. None on a device, where reading them would wait."""
    ignored: int = 0
    """The target that does not count."""


class Forward:
    """One call of the model: its arguments and the resulting loss."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], moment: Moment) -> None:
        self.args = args
        self.kwargs = kwargs
        self.moment = moment
        self.loss: Loss | None = None


class MicroBatch:
    """A batch that the step function or the model was given, and what came of it."""

    # Class attributes are the defaults: a micro-batch is made at every step.
    num_backwards = 0
    """How often backward was called."""
    backward_loss: Loss | None = None
    """What backward was called on, as the loss of the micro-batch."""
    awaits_comparison = False
    """Whether its copies are still to be compared with what the loop makes of it."""
    is_written = False
    """Whether it was written to a file."""
    is_loss_of_backward = False
    """Whether that is its loss, because neither the user nor the model tells it."""

    def __init__(
        self,
        batch: Any,
        moment: Moment,
        *,
        last: bool | None,
        names: Any = None,
        copied: bool = False,
    ) -> None:
        """`copied`: copy its tensors, because their owner may overwrite them before they are
        written to a file.
        """
        self.batch = batch
        self.tree: BatchTree = flatten(batch)
        tensors = self.tree.tensors
        self.tensors = tensors
        tokens = tokens_of(batch)
        if tokens is None:
            self.num_tokens = 1
            self.num_rows = num_rows(batch, self.tree)
        else:
            self.num_tokens = tokens.numel()
            self.num_rows = tokens.size(0)
        self._versions = [version_of(tensor) for tensor in tensors]
        self._copies: list[Tensor] | None = None
        if copied:
            self._copies = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
        self.moment = moment
        self.last = last
        """The `last` argument that the step function received; None if it received none."""
        self.names = names
        """The names of its samples, if the user gave some."""
        self.packs_samples = (
            names is not None and hasattr(names, "__len__") and len(names) > self.num_rows
        )
        """Whether its rows hold several samples each, so that none has a loss of its own."""
        self.num_sample_rows = 0 if self.packs_samples else self.num_rows
        """The number of rows that are a sample each."""
        self.forwards: list[Forward] = []
        self.losses: list[Loss] = []
        """The losses that the user reported, or that backward was called on."""
        self.rows: RowMeans | None = None
        """The losses of its rows, if they are wanted and known."""

    def num_bytes(self) -> int:
        """Return how many bytes it takes in memory: its tensors, and what of them the model was
        given on a device.
        """
        own = sum(map(bytes_of, self.tensors))
        is_moved = bool(self.forwards) and all(tensor.is_cpu for tensor in self.tensors)
        return 2 * own if is_moved and self.moment.device is not None else own

    def note_rows(self, rows: RowMeans | None) -> None:
        """Note the losses of its rows, if they are known."""
        if rows is not None:
            self.rows = rows

    def seen_losses(self) -> list[Loss]:
        """Return its losses: those that the user reported, otherwise those that the model
        returned or that backward was called on.
        """
        if self.losses or not self.forwards:
            return self.losses
        return [forward.loss for forward in self.forwards if forward.loss is not None]

    @property
    def loss_from(self) -> str:
        """Where the loss came from: "told" by the user, "returned" by the model, what "backward"
        was called on, or known only when the "step" function returned it.
        """
        if self.is_loss_of_backward:
            return "backward"
        if self.losses:
            return "told"
        return "returned" if self.seen_losses() else "step"

    def is_unchanged(self) -> bool:
        """Return whether the tensors have not been modified since."""
        return [version_of(tensor) for tensor in self.tensors] == self._versions

    def has_its_parts(self) -> bool:
        """Return whether the step has taken nothing out of the batch, or put into it."""
        return flatten(self.batch).plain == self.tree.plain

    def is_untouched(self) -> bool:
        """Return whether a copied batch is still the same, even if it was changed in a way that
        torch cannot detect.
        """
        if not self.is_unchanged():
            return False
        pairs = zip(self.to_write(), self.tensors, strict=True)
        return all(torch.equal(copy, tensor.detach().cpu()) for copy, tensor in pairs)

    def to_write(self) -> list[Tensor]:
        """Return the tensors to write to a file: copies, or its own; check `is_whole` after reading
        them.
        """
        return self.tensors if self._copies is None else self._copies

    def let_go_of_copies(self) -> None:
        """Hold no copies any longer, once they are written and compared."""
        if self.is_written and not self.awaits_comparison:
            self._copies = None

    def is_whole(self) -> bool:
        """Return whether the tensors from `to_write` are still those of the batch."""
        return self._copies is not None or self.is_unchanged()


class Measured(NamedTuple):
    """The vitals of an update: their names, and their values or a copy on its way from a device."""

    names: Sequence[str]
    values: Sequence[float] | Copy

    def by_name(self) -> dict[str, float]:
        """Return the values by name, waiting for them if necessary."""
        values: Any = self.values.value() if isinstance(self.values, Copy) else self.values
        return dict(zip(self.names, values, strict=True))


class Stage(enum.Enum):
    """How far an update has come."""

    COLLECTING = "collecting micro-batches"
    READY = "gradients are there, and the optimizer has not moved yet"
    APPLIED = "applied"


class Update:
    """Everything that belongs to one update."""

    # Class attributes are the defaults: an update is made at every step.
    stage = Stage.COLLECTING
    cannot_replay = ""
    """Why its micro-batches do not make this update again; empty if they do."""
    loss: float | None = None
    """The mean loss over the ranks; None until it is known."""
    own_loss: float | None = None
    """The loss of this rank."""
    rates: Sequence[float] = ()
    """The learning rate of every parameter group."""
    grad_norm: float | None = None
    skipped: str | None = None
    """Why the weights were not updated; None if they were."""
    is_judged = False
    """Whether its loss and gradients were judged before the optimizer moved. False while it waits
    for a loss that only the step function returns.
    """
    is_over = False
    """Whether the training has gone past it."""
    is_written = False
    """Whether its batches are on disk, or are not to be."""
    has_other_moved = False
    """Whether another optimizer has moved before its own: the state before it is gone then."""
    autocast: torch.dtype | None = None
    """The autocast precision of its forward passes."""
    seconds = math.nan
    """How long it took, with the wait for its data."""
    wait_seconds = math.nan
    """How long it waited for its data."""
    clip_limit: float | None = None
    """The gradient norm above which the loop clips; None if it does not clip."""
    loss_factor = 1.0
    """If its loss is what backward was called on: how many times as large it is."""
    num_rows_let_go = 0
    """How many rows the micro-batches had that are no longer held."""
    vitals: "Measured | None" = None
    """What was measured at this update, if it was one at which vitals are."""

    def __init__(self, step: int, *, had_gradients: bool) -> None:
        self.step = step
        self.had_gradients = had_gradients
        """Whether gradients of an earlier update were still there when it began."""
        self.micro: list[MicroBatch] = []
        self.num_calls = 0
        """How many micro-batches it had, those that are no longer held included."""
        self.num_tokens = 0

    @property
    def lr(self) -> float:
        """The learning rate of the first group; NaN if it has none."""
        return self.rates[0] if self.rates else math.nan

    @property
    def is_applied(self) -> bool:
        """Whether the optimizer has moved."""
        return self.stage is Stage.APPLIED

    @property
    def num_rows(self) -> int:
        """How many rows its micro-batches have."""
        return self.num_rows_let_go + sum(micro.num_rows for micro in self.micro)

    def batch_bytes(self) -> int:
        """Return how many bytes its batches take in memory."""
        return sum(micro.num_bytes() for micro in self.micro)

    def num_shared_tensors(self) -> int:
        """Return how many tensors its batches have, if they come from another process: each keeps
        a file open.
        """
        return sum(
            len(micro.tensors)
            for micro in self.micro
            if micro.tensors and micro.tensors[0].is_cpu and micro.tensors[0].is_shared()
        )

    def let_go_of_batches(self) -> None:
        """Hold no batches any longer, once they are written."""
        self.num_rows_let_go = self.num_rows
        self.micro = []

    def add(self, micro: MicroBatch) -> None:
        """Add another micro-batch."""
        self.micro.append(micro)
        self.num_calls += 1
        self.num_tokens += micro.num_tokens

    def drop_last(self) -> None:
        """Drop the last micro-batch, which failed. What was judged with it is to be judged anew."""
        if self.micro:
            self.num_tokens -= self.micro.pop().num_tokens
            self.num_calls -= 1
        self.stage = Stage.COLLECTING
        self.is_judged = False

    def forget_batches(self) -> None:
        """Hold no batch any longer, because there are too many."""
        self.micro = self.micro[-1:]
        self.cannot_replay = "it had too many micro-batches to hold"

    def note_rates(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the current learning rates."""
        rates = []
        for group in optimizer.param_groups:
            rate = group.get("lr")
            rates.append(rate if type(rate) is float else rate_of(group))
        self.rates = rates

    def seen_losses(self) -> list[Loss]:
        """Return the losses of its micro-batches."""
        if len(self.micro) == 1:
            return self.micro[0].seen_losses()
        return [loss for micro in self.micro for loss in micro.seen_losses()]

    def rows(self) -> RowMeans | None:
        """Return the losses of its rows; None unless all micro-batches have them."""
        if len(self.micro) == 1:
            return self.micro[0].rows
        known = [micro.rows for micro in self.micro if micro.rows is not None]
        if not known or len(known) < len(self.micro):
            return None
        losses = torch.cat([torch.as_tensor(rows.losses) for rows in known])
        counts = torch.cat([torch.as_tensor(rows.counts) for rows in known])
        return RowMeans(losses, counts)

    def names(self) -> list[tuple[str, int]]:
        """Return the names of its rows."""
        return [name for micro in self.micro for name in named_rows(micro.names, micro.batch)]

    def random_numbers(self) -> str | None:
        """Return a digest that identifies its random numbers; None without its batches."""
        return digest_of_state(self.micro[0].moment.cpu) if self.micro else None

    @property
    def loss_from(self) -> str:
        """Where its loss came from, as `MicroBatch.loss_from`."""
        known = [micro.loss_from for micro in self.micro if micro.loss_from != "step"]
        return known[0] if known else "step"

    @property
    def precision(self) -> str | None:
        """The name of the autocast precision of its forward passes; None without autocast."""
        return None if self.autocast is None else str(self.autocast).removeprefix("torch.")


class UpdateClock:
    """Measures how long updates take, and how long they wait for their data."""

    def __init__(self) -> None:
        self.began = 0.0
        """When the current update began."""
        self._ended = 0.0
        self._ended_before = 0.0
        self._loss_known = 0.0
        self._looked_for = 0.0

    def loss_is_known(self) -> None:
        """A loss of the update is known: until here a rank waits for no other."""
        self._loss_known = perf_counter()

    def seconds_to_loss(self) -> float | None:
        """Return how long the update that has just ended took to its loss, with the wait for data;
        None if that is not known.
        """
        if not self._ended_before or self._loss_known < self._ended_before:
            return None
        return self._loss_known - self._ended_before

    def end(self, update: Update, looked_for: float) -> None:
        """An update ends: note how long it took since the end of the one before it. Looks of ours
        at scenes, which took `looked_for` seconds in all so far, do not count.
        """
        now = perf_counter()
        own_seconds = looked_for - self._looked_for
        self._looked_for = looked_for
        if self._ended:
            wait = self.began - self._ended
            if wait > own_seconds:
                wait -= own_seconds  # a look may follow the step before
            update.seconds = now - self._ended - own_seconds
            update.wait_seconds = wait
        self._ended_before = self._ended
        self._ended = now


def rate_of(group: Mapping[str, Any]) -> float:
    """Return the learning rate of a parameter group; NaN if it has none of its own."""
    rate = group.get("lr")
    return math.nan if rate is None else float(rate)
