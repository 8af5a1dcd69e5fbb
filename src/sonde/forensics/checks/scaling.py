"""What is done to gradients that a gradient scaler multiplies: clipped too early, or never divided
again.
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
    wrong,
)

_NEAR_SCALE: Final = 0.5
_MIN_SCALE: Final = 64.0
"""With a smaller scale, scaled gradients cannot be told from others."""
_SAME: Final = 0.02
"""Norms that differ by less than this share are the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedScaled:
    """What was measured in the first updates."""

    scale: float | None
    """The scale of the gradient scaler; None without one."""
    norm_at_clipping: float | None = None
    norm_at_step: float | None = None


def judge_clipped(measured: ClippedScaled) -> Outcome:
    """Judge whether gradients are clipped before they are unscaled."""
    if measured.scale is None:
        return does_not_apply("No gradient scaler is used.")
    if not measured.norm_at_clipping or not measured.norm_at_step:
        return does_not_apply("The gradients are not clipped.")
    if measured.scale < _MIN_SCALE:
        return cannot_tell(f"The scale is only {measured.scale:g}.")
    if measured.norm_at_clipping > _NEAR_SCALE * measured.scale * measured.norm_at_step:
        return wrong(
            f"The norm that is clipped is {measured.norm_at_clipping:.4g}, and that of the update"
            f" {measured.norm_at_step:.3g}: gradients are clipped while they are multiplied by"
            f" {measured.scale:g}."
        )
    return fine("Gradients are clipped after they are unscaled.")


CLIPPED: Final = Check(
    name="clipped_scaled",
    title="clipping and scaling",
    question="Are gradients unscaled before they are clipped?",
    meaning="Every update is clipped to almost nothing.",
    advice="Call scaler.unscale_(optimizer) before clip_grad_norm_.",
    applies_to="trainings with a gradient scaler and clipping",
    judge=judge_clipped,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalerBypassed:
    """What was measured on the first update."""

    scale: float | None
    """The scale of the gradient scaler; None without one."""
    is_loss_scaled: bool = True
    """Whether backward is called on the loss times the scale."""
    divides_itself: bool = False
    """Whether the optimizer divides by the scale itself, as fused ones do."""
    norm_after_backward: float | None = None
    norm_at_step: float | None = None


def judge_bypassed(measured: ScalerBypassed) -> Outcome:
    """Judge whether gradients are divided by the scale before the optimizer uses them."""
    if measured.scale is None or not measured.is_loss_scaled:
        return does_not_apply("No gradient scaler multiplies the loss.")
    if measured.divides_itself:
        return does_not_apply("The optimizer divides by the scale itself.")
    after = measured.norm_after_backward
    at_step = measured.norm_at_step
    if not after or at_step is None:
        return cannot_tell("The gradient norm was not seen.")
    if not math.isfinite(after):
        return cannot_tell(f"Gradients overflow at the first scale, {measured.scale:g}.")
    if measured.scale < _MIN_SCALE:
        return cannot_tell(f"The scale is only {measured.scale:g}.")
    if abs(at_step - after) <= _SAME * after:
        return wrong(
            f"The loss is multiplied by {measured.scale:g}, and the optimizer is given gradients"
            f" with the norm {at_step:.3g}, as backward left them: nothing divides them again."
        )
    return fine("Gradients are divided by the scale before the optimizer's step.")


BYPASSED: Final = Check(
    name="scaler_bypassed",
    title="gradient scaler",
    question="Does the optimizer get gradients without the scale?",
    meaning="Every update is as many times too large as the scale says.",
    advice="Call scaler.step(optimizer) and scaler.update() instead of optimizer.step().",
    applies_to="trainings with a gradient scaler",
    judge=judge_bypassed,
)
