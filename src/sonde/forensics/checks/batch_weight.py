"""Does an update weigh the same, however many rows its batch has, and however many places count?"""

from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import (
    Check,
    Outcome,
    cannot_tell,
    does_not_apply,
    fine,
    percent,
    wrong,
)

_UNEQUAL: Final = 1.5
"""Batches differ in size if the largest has this many times as many rows as the smallest."""
_UNEQUAL_SHARES: Final = 1.1
"""Batches differ in what counts if the largest share is this many times the smallest."""
_NEAR: Final = 0.2
"""Losses that differ by less than this share are the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchWeight:
    """What was measured: the loss of the first batch, and of its halves."""

    num_rows: tuple[int, ...] = ()
    """How many rows each of the first updates has."""
    loss: float = 0.0
    """The loss of the first batch."""
    of_halves: tuple[float, float] = (0.0, 0.0)
    counted: tuple[float, ...] = ()
    """For each of the first batches, the share of its places that count, if the loss is the sum
    over these divided by the number of all places; empty if it is not.
    """
    unfit: str = ""
    """Why the question does not apply; empty if it does."""
    unknown: str = ""
    """Why it could not be measured; empty if it was."""


def judge(measured: BatchWeight) -> Outcome:
    """Judge whether the loss is a sum over rows of batches that differ in size, or a mean over
    places that do not count too.
    """
    if measured.counted and max(measured.counted) > _UNEQUAL_SHARES * min(measured.counted):
        lowest = percent(min(measured.counted))
        highest = percent(max(measured.counted))
        return wrong(
            f"The loss is divided by the number of all places, and {lowest} to {highest} of those"
            " of a batch count: an update weighs the less, the more its batch is padded or masked."
        )
    if measured.unfit:
        return does_not_apply(measured.unfit)
    if measured.unknown:
        return cannot_tell(measured.unknown)
    together = sum(measured.of_halves)
    figures = (
        f"the first batch has a loss of {measured.loss:.4g}, its halves have"
        f" {measured.of_halves[0]:.4g} and {measured.of_halves[1]:.4g}"
    )
    if abs(together / 2 - measured.loss) < _NEAR * abs(measured.loss):
        return fine(f"The loss is a mean over rows: {figures}.")
    if not abs(together - measured.loss) < _NEAR * abs(measured.loss):
        return cannot_tell(f"The loss is neither a sum nor a mean over rows: {figures}.")
    fewest = min(measured.num_rows)
    most = max(measured.num_rows)
    if most < _UNEQUAL * fewest:
        return fine(f"The loss is a sum over rows, and batches have {fewest} to {most}.")
    return wrong(
        f"The loss is a sum over rows: {figures}. Batches have {fewest} to {most} rows, so an"
        " update weighs as much as its batch is large."
    )


CHECK: Final = Check(
    name="batch_weight",
    title="size of a batch",
    question="Does an update weigh the same, however many rows its batch has?",
    meaning="The step size changes with the size of the batch, and large batches decide.",
    advice="Divide the loss by the number of rows, or of targets that count: reduction='mean'.",
    applies_to="batches of at least four rows, whose gradients nothing changes before the step",
    judge=judge,
)
