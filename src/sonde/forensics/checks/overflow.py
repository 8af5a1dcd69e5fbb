"""How near the numbers of a training in float16 come to the largest that it can hold."""

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

LIMIT: Final = 65504.0
"""The largest number of float16."""
_CLOSE: Final = 0.25
"""From this share of the limit on, an overflow is close: activations grow in training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfRange:
    """What was measured in the first batch."""

    is_float16: bool
    """Whether the forward pass or the weights are in float16."""
    largest: float | None = None
    """The largest output of a module in float16; infinite if one overflowed."""
    module: str = ""
    """The module that gave it."""
    largest_gradient: float | None = None
    """The largest gradient of such an output, as it is in backward."""
    has_scaler: bool = False
    """Whether a gradient scaler lowers its scale when gradients overflow."""


def judge(measured: HalfRange) -> Outcome:
    """Judge how close an overflow is."""
    if not measured.is_float16:
        return does_not_apply("Nothing is computed in float16.")
    if measured.largest is None:
        return cannot_tell("No module has an output in float16.")
    if measured.largest > LIMIT:
        return wrong(f"The output of {measured.module} overflows in float16.")
    share = measured.largest / LIMIT
    found = (
        f"the largest output in float16 is {measured.largest:.4g} ({measured.module}),"
        f" {percent(share)} of the largest number it can hold"
    )
    if share >= _CLOSE:
        return wrong(f"An overflow is close: {found}.")
    gradient = measured.largest_gradient
    if gradient is not None and gradient >= _CLOSE * LIMIT and not measured.has_scaler:
        return wrong(
            f"The largest gradient in float16 is {gradient:.4g}, {percent(gradient / LIMIT)} of"
            " the largest number it can hold, and no gradient scaler takes care of it."
        )
    return fine(f"{found[0].upper()}{found[1:]}.")


CHECK: Final = Check(
    name="overflow",
    title="overflow",
    question="Are the numbers far from the largest that float16 can hold?",
    meaning="The loss becomes infinite or NaN once activations grow a little.",
    advice="Use bfloat16, which has the range of float32; or keep this module in float32, or make"
    " its outputs smaller (its init, a norm before it).",
    applies_to="trainings in float16",
    judge=judge,
)
