"""Can the training learn one batch by heart?"""

import math
from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import (
    Check,
    Outcome,
    cannot_tell,
    does_not_apply,
    fine,
    wrong,
)

_RISES: Final = 1.05
"""Wrong: all of the last losses are above this many times the first."""
_NUM_LAST: Final = 4
LOWER_RATES: Final = (30, 1000)
"""The rate is divided by each of these in turn if the loss rises, until it falls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OneBatch:
    """What was measured: updates on one batch with the same random numbers."""

    losses: tuple[float, ...]
    """The loss before each of them."""
    largest_rate: float = 1.0
    num_optimizers: int = 1
    has_scaler: bool = False
    """Whether a gradient scaler may skip updates."""
    unknown: str = ""
    """Why it could not be tried; empty if it was."""
    losses_at_lower_rate: tuple[float, ...] = ()
    """If the loss rises: those of the same updates at the last of the lower rates."""
    divided_by: int = 1
    """What the rate was divided by for them."""

    @property
    def rises(self) -> bool:
        """Whether the loss is not finite, or clearly higher in the end than at first."""
        if len(self.losses) <= _NUM_LAST:
            return False
        if not all(map(math.isfinite, self.losses)):
            return True
        first = self.losses[0]
        highest_first = _RISES * first if first > 0 else first + 0.05 * abs(first)
        return min(self.losses[-_NUM_LAST:]) > highest_first

    @property
    def is_rate_too_high(self) -> bool:
        """Whether the loss rises, and falls at the lower rate."""
        lower = self.losses_at_lower_rate
        if not self.rises or len(lower) <= _NUM_LAST or not all(map(math.isfinite, lower)):
            return False
        return lower[-1] < lower[0]


def judge(measured: OneBatch) -> Outcome:
    """Judge whether the loss falls."""
    if measured.num_optimizers > 1:
        return does_not_apply("Several optimizers train against one another.")
    if measured.unknown or len(measured.losses) <= _NUM_LAST:
        return cannot_tell(measured.unknown or "The loss of the batch could not be seen.")
    first = measured.losses[0]
    last = measured.losses[-1]
    path = f"from {first:.4g} to {last:.4g} in {len(measured.losses) - 1} updates on one batch"
    if measured.is_rate_too_high:
        return cannot_tell(
            f"The loss goes {path}, and falls at 1/{measured.divided_by} of the rate: see the"
            " learning rate."
        )
    if not all(map(math.isfinite, measured.losses)):
        return wrong(f"The loss is not finite after a few updates on one batch: {path}.")
    if max(measured.losses) == min(measured.losses):
        if measured.largest_rate == 0:
            return cannot_tell("The learning rate was 0.")
        if measured.has_scaler:
            return cannot_tell("The loss stays the same: the gradient scaler skips the updates.")
        return wrong(f"The loss of one batch stays {first:.6g} to the bit.")
    if last < first:
        return fine(f"The loss falls {path}.")
    if measured.rises:
        return wrong(f"The loss rises {path}.")
    return cannot_tell(f"The loss neither falls nor clearly rises: {path}.")


CHECK: Final = Check(
    name="one_batch",
    title="one batch by heart",
    question="Does the loss of one batch fall when only that batch is trained on?",
    meaning="What cannot learn one batch cannot learn.",
    advice="A loss that rises: try a tenth of the learning rate, and look at the sign of the loss."
    " One that stays: see what the other checks say about gradients and weights.",
    applies_to="trainings with one optimizer",
    judge=judge,
    follows_from=(
        "gradient_reach",
        "optimizer_members",
        "weights_move",
        "learning_rate",
        "epsilon",
        "stale_casts",
        "lost_updates",
        "start_loss",
    ),
)
