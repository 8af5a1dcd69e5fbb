"""Whether autocast casts the weights of now, or those from before the first update."""

from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import Check, Outcome, does_not_apply, fine, wrong


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleCasts:
    """What was measured after the first updates."""

    num_looks: int
    """After how many updates autocast was on."""
    num_stale: int = 0
    """After how many of them the cast of a weight was that of an older value."""


def judge(measured: StaleCasts) -> Outcome:
    """Judge whether forward passes see what the optimizer changes."""
    if not measured.num_looks:
        return does_not_apply("Autocast is not on between updates.")
    if measured.num_stale:
        return wrong(
            f"After {measured.num_stale} of {measured.num_looks} updates, autocast still used casts"
            " of the weights as they were before: forward passes do not see what the optimizer"
            " changes."
        )
    return fine("Autocast is on around the steps, and casts the weights of now.")


CHECK: Final = Check(
    name="stale_casts",
    title="casts of weights",
    question="Does autocast cast the current weights?",
    meaning="The loss hardly falls: most weights have no effect until the loop ends.",
    advice="Enter torch.autocast inside the loop, around forward and loss: leaving it drops its"
    " casts.",
    applies_to="trainings with autocast around the loop",
    judge=judge,
)
