"""What low precision loses: losses and gradients beside those in float32, updates that are too
small for the weights, an epsilon that is zero, and a gradient norm that is clipped while it is
scaled.
"""

import math
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

_LOSS_OFF: Final = 0.05
_MANY: Final = 0.5
"""From this share of unchanged weights on, updates get lost."""
_ALIKE: Final = 0.9
"""Gradients with a lower cosine than this go elsewhere. bfloat16 gives 0.99 and more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """What was measured on the first batch."""

    dtype: str | None
    """The precision of autocast; None without it."""
    loss: float | None = None
    float32_loss: float | None = None
    cosine: float | None = None
    """The cosine between the gradients of both."""


def judge_precision(measured: Precision) -> Outcome:
    """Judge whether low precision changes what is computed."""
    if measured.dtype is None:
        return does_not_apply("The forward pass does not use autocast.")
    if measured.loss is None or not measured.float32_loss:
        return cannot_tell("The loss in float32 could not be had.")
    beside = f"the loss is {measured.loss:.5g} in {measured.dtype}, {measured.float32_loss:.5g} in"
    beside = f"{beside} float32"
    off = abs(measured.loss - measured.float32_loss) / abs(measured.float32_loss)
    if not off <= _LOSS_OFF:  # NaN is off
        return wrong(f"Low precision changes the result: {beside}.")
    if measured.cosine is not None and math.isnan(measured.cosine):
        return wrong(f"The gradient in {measured.dtype} is not finite; {beside}.")
    if measured.cosine is not None and measured.cosine < _ALIKE:
        return wrong(
            f"The gradient in {measured.dtype} has a cosine of {measured.cosine:.3f} with that in"
            f" float32; {beside}."
        )
    return fine(f"{beside[0].upper()}{beside[1:]}.")


PRECISION: Final = Check(
    name="precision",
    title="precision",
    question="Is the result in low precision that of float32?",
    meaning="Sums, exponentials or small gradients get lost.",
    advice="Keep the loss, softmax and norms in float32; in float16 use a gradient scaler.",
    applies_to="trainings with autocast",
    judge=judge_precision,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LostUpdates:
    """What was measured over the first updates."""

    dtype: str | None
    """The half precision of the weights; None if they have none."""
    num_weights: int = 0
    """How many such weights got a gradient other than 0."""
    num_unchanged: int = 0
    """How many of them are the same after the updates."""
    num_updates: int = 0


def judge_lost(measured: LostUpdates) -> Outcome:
    """Judge whether updates are too small for the precision of the weights."""
    if measured.dtype is None:
        return does_not_apply("The weights are not in half precision.")
    if not measured.num_weights:
        return cannot_tell("No weight in half precision got a gradient.")
    share = measured.num_unchanged / measured.num_weights
    text = (
        f"{percent(share)} of the {measured.dtype} weights with a gradient are the same after"
        f" {measured.num_updates} updates"
    )
    if share >= _MANY:
        return wrong(f"{text}: their updates are smaller than half a unit in the last place.")
    return fine(f"{text}.")


LOST: Final = Check(
    name="lost_updates",
    title="updates in half precision",
    question="Are updates large enough for the precision of the weights?",
    meaning="Most updates round to nothing, more of them as the rate falls.",
    advice="Keep the weights in float32 and use autocast, or an optimizer that keeps float32"
    " copies or rounds at random.",
    applies_to="weights in bfloat16 or float16",
    judge=judge_lost,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Epsilon:
    """What the optimizer divides by at least, in the precision of the weights."""

    epsilon: float | None
    """The optimizer's epsilon; None if it has none."""
    dtype: str = "float32"
    """The lowest precision of its weights."""
    is_zero: bool = False
    """Whether the epsilon is rounded to 0 in that precision."""


def judge_epsilon(measured: Epsilon) -> Outcome:
    """Judge whether the optimizer may divide by zero."""
    if measured.epsilon is None:
        return does_not_apply("The optimizer has no epsilon.")
    if measured.is_zero:
        return wrong(
            f"The optimizer's epsilon of {measured.epsilon:g} is 0 in {measured.dtype}, the"
            " precision of its weights: a gradient of 0 divides by 0."
        )
    return fine(f"The optimizer's epsilon of {measured.epsilon:g} is not 0 in {measured.dtype}.")


EPSILON: Final = Check(
    name="epsilon",
    title="epsilon of the optimizer",
    question="Is the optimizer's epsilon a number in the precision of the weights?",
    meaning="Weights without a gradient become NaN at the first update.",
    advice="Keep the weights in float32 and use autocast, or give the optimizer a larger eps, such"
    " as 1e-4 in float16.",
    applies_to="Adam and its like",
    judge=judge_epsilon,
)
