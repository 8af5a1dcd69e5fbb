"""One step in the ring of the recorder: its loss and what the loop told of it, held but not read.

The losses of every token are kept by reference with torch's count of in-place changes: if the count
has changed when they are needed, they are lost and are left out, never mistaken for others.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, TypedDict

from sonde.spikes.generator_digests import digest_of_state, take_state
from sonde.spikes.held_values import hold, released, version_of

_DIGITS: Final = 5
"""The number of decimals of a token's loss in a record."""


class StepDetails(TypedDict, total=False):
    """Optional details about a step besides its loss."""

    sample_ids: Any
    """The samples of this rank: numbers, texts, or pairs (dataset, number)."""
    sample_losses: Any
    """The mean loss per token of each sample: a list, array or tensor."""
    token_losses: Any
    """The loss of each token: a tensor or array (samples, tokens), or a sequence with one row per
    sample.
    """
    token_counts: Any
    """The number of target tokens of each sample; entries of `token_losses` beyond it are
    padding.
    """
    lr: Any
    """The learning rate."""
    grad_norm: Any
    """The global gradient norm before clipping."""
    rng: Any
    """An identifier of this step's random numbers. Default: a digest of torch's CPU generator."""


class StepEntry:
    """The values of one step, held but not read."""

    __slots__ = (
        "_version",
        "grad_norm",
        "loss",
        "lr",
        "rng",
        "rng_state",
        "sample_ids",
        "sample_losses",
        "step",
        "token_counts",
        "token_losses",
    )

    def __init__(self, step: int, loss: Any, details: StepDetails) -> None:
        get = details.get
        self.step = step
        self.loss = loss
        ids = get("sample_ids")
        self.sample_ids: Any = ids if callable(ids) else hold(ids)
        self.sample_losses: Any = hold(get("sample_losses"))
        self.token_counts: Any = hold(get("token_counts"))
        self.token_losses: Any = get("token_losses")
        self._version = 0 if self.token_losses is None else version_of(self.token_losses)
        self.lr = get("lr")
        self.grad_norm: Any = hold(get("grad_norm"))
        self.rng = get("rng")
        self.rng_state = None if self.rng is not None else take_state()

    @property
    def is_filler(self) -> bool:
        """Whether this is the placeholder row of a rank without data."""
        if not isinstance(self.sample_ids, list) or not self.sample_ids:
            return False
        first = self.sample_ids[0]
        return isinstance(first, tuple) and bool(first[-1] == -1)

    def secure_tokens(self) -> None:
        """Copy the token losses if they are unchanged, because another thread is about to read
        them.
        """
        self.token_losses = hold(self._tokens())
        self._version = version_of(self.token_losses)

    def _tokens(self) -> Any:
        return self.token_losses if version_of(self.token_losses) == self._version else None

    def as_record(self) -> dict[str, Any]:
        """Return the entry as plain data."""
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

    def worst_tokens(
        self, losses: Sequence[float] | None, num_samples: int
    ) -> list[dict[str, Any]]:
        """Return the token losses of the worst samples; `row` is the sample's position in the
        step.
        """
        losses = losses or ()
        # The worst first; NaN is worst.
        rows = sorted(
            range(len(losses)), key=lambda row: (losses[row] == losses[row], -losses[row])
        )
        known = [(row, self.token_row(row)) for row in rows[:num_samples]]
        return [{"row": row, "losses": tokens} for row, tokens in known if tokens is not None]

    def token_row(self, row: int) -> list[float] | None:
        """Return the token losses of one sample, if they are known. Waits for their device."""
        rows = self._tokens()
        counts = released(self.token_counts)
        if rows is None or row >= len(rows):
            return None
        losses = released(rows[row])
        if counts is not None:
            losses = losses[: int(counts[row])]
        return [round(loss, _DIGITS) for loss in losses]

    def _losses_of_samples(self) -> Any:
        """Return the sample losses as given, otherwise the means over each sample's tokens."""
        if self.sample_losses is not None or self.token_losses is None:
            return released(self.sample_losses)
        rows = [released(row) for row in released(self.token_losses)]
        counts = released(self.token_counts)
        if counts is not None:
            rows = [row[: int(counts[place])] for place, row in enumerate(rows)]
        return [_mean(row) for row in rows]


def _mean(row: Sequence[float]) -> float:
    # The sum of very large numbers may overflow where their mean does not.
    return sum(loss / len(row) for loss in row) if row else math.nan
