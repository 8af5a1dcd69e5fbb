"""One step as the ring keeps it, and as a spike record tells it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, final

from sonde.spikes.holding import HeldTensor, hold, released
from sonde.spikes.randomness import digest_of_state, take_state

_DIGITS: Final = 5
"""Decimals of a token's loss in a record."""


class StepDetails(TypedDict, total=False):
    """What may be told about a step, beyond its loss. Everything may be missing."""

    sample_ids: Any
    """The samples of this rank: numbers, texts, or pairs (dataset, number)."""
    sample_losses: Any
    """Mean loss per token of each sample: a list, array or tensor."""
    token_losses: Any
    """Loss of each token: a tensor or array (samples, tokens), or a sequence of one row per sample."""
    token_counts: Any
    """Target tokens of each sample; what lies beyond them in `token_losses` is padding."""
    lr: Any
    """The learning rate."""
    grad_norm: Any
    """The global gradient norm before clipping."""
    rng: Any
    """What identifies the random numbers of this step; torch's CPU generator is digested when it is not given."""


@final
class StepEntry:
    """What was handed over at one step, held but not read."""

    __slots__ = ("grad_norm", "loss", "lr", "rng", "rng_state", "sample_ids", "sample_losses", "step", "token_counts", "token_losses")  # fmt: skip

    def __init__(self, step: int, loss: Any, details: StepDetails) -> None:
        get = details.get
        self.step = step
        self.loss = loss
        self.sample_ids = hold(get("sample_ids"))
        self.sample_losses = hold(get("sample_losses"))
        self.token_counts = hold(get("token_counts"))
        self.token_losses = hold(get("token_losses"))
        self.lr = get("lr")
        self.grad_norm = hold(get("grad_norm"))
        self.rng = get("rng")
        self.rng_state = None if self.rng is not None else take_state()

    def forget_tokens(self) -> None:
        """Let go of the losses of tokens: only a spike's own step needs them, and they are large."""
        self.token_losses = None

    def secure_tokens(self) -> None:
        """Copy the losses of tokens, if they are still what they were: they are about to be read by another thread."""
        held = self.token_losses
        if isinstance(held, HeldTensor):
            self.token_losses = held.tensor.clone() if held.is_unchanged() else None

    def as_record(self) -> dict[str, Any]:
        """The entry as plain data."""
        return {
            "step": self.step,
            "loss": released(self.loss),
            "lr": released(self.lr),
            "grad_norm": released(self.grad_norm),
            "rng": released(self.rng) if self.rng is not None else digest_of_state(self.rng_state),
            "sample_ids": released(self.sample_ids),
            "sample_losses": self._losses_of_samples(),
            "token_counts": released(self.token_counts),
        }

    def worst_tokens(self, record: Mapping[str, Any], num_samples: int) -> list[dict[str, Any]]:
        """The losses of every token of the worst samples: `row` is the sample's place in the step."""
        losses, counts = record["sample_losses"], record["token_counts"]
        if losses is None or self.token_losses is None:
            return []
        found = []
        for row in rows_by_loss(losses)[:num_samples]:
            tokens = self._row(row, counts)
            if tokens is not None:
                found.append({"row": row, "losses": tokens})
        return found

    def token_row(self, row: int) -> list[float] | None:
        """The losses of the tokens of one sample, where they are at hand without waiting for a device."""
        held = self.token_losses
        if isinstance(held, HeldTensor):
            held = held.tensor if held.is_unchanged() and held.tensor.is_cpu else None
        return None if held is None else self._row(row, released(self.token_counts), held)

    def _row(self, row: int, counts: Sequence[float] | None, rows: Any = None) -> list[float] | None:
        rows = self.token_losses if rows is None else rows
        if row >= len(rows):
            return None
        tokens = released(rows[row])
        num_tokens = len(tokens) if counts is None else int(counts[row])
        return [round(one, _DIGITS) for one in tokens[:num_tokens]]

    def _losses_of_samples(self) -> Any:
        """As they were given, or else the means over the tokens of each sample."""
        if self.sample_losses is not None or self.token_losses is None:
            return released(self.sample_losses)
        rows, counts = released(self.token_losses), released(self.token_counts)
        if rows is None:
            return None
        return [
            _mean(row if counts is None else row[: int(counts[place])]) for place, row in enumerate(map(released, rows))
        ]


def rows_by_loss(losses: Sequence[float]) -> list[int]:
    """The places of samples, worst first; what is not a number is worse than anything."""
    return sorted(range(len(losses)), key=lambda row: (losses[row] == losses[row], -losses[row]))


def _mean(row: Sequence[float]) -> float:
    if not row:
        return math.nan
    total = sum(row)
    # A sum of the greatest numbers overflows where their mean does not.
    return total / len(row) if math.isfinite(total) else sum(loss / len(row) for loss in row)
