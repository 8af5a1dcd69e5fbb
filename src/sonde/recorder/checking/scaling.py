"""Measures what a training does with the gradients of a gradient scaler."""

import math
from collections.abc import Sequence

import torch

from sonde.forensics.checks.scaling import ClippedScaled, ScalerBypassed
from sonde.recorder.checking.bench import Bench
from sonde.recorder.checking.first_steps import FirstSteps
from sonde.recorder.checking.forward_watch import Look, norm_of
from sonde.recorder.checking.snapshot import undone


def clipped_scaled(first: FirstSteps, scalers: Sequence[torch.amp.GradScaler]) -> ClippedScaled:
    """Return the norms seen with a gradient scaler: of the last update that was made."""
    if not any(scaler.is_enabled() for scaler in scalers):
        return ClippedScaled(scale=None)
    for clipped, at_step, scale in reversed(first.norms):
        if at_step is not None:
            return ClippedScaled(
                scale=scale, norm_at_clipping=float(clipped), norm_at_step=float(at_step)
            )
    return ClippedScaled(scale=1.0)


def scaler_bypassed(bench: Bench) -> ScalerBypassed:
    """Compare the gradients of the first update after backward with those that its optimizer
    gets.
    """
    enabled = [scaler for scaler in bench.training.scalers() if scaler.is_enabled()]
    if not enabled:
        return ScalerBypassed(scale=None)
    scale = enabled[0].get_scale()
    with undone(bench.training, bench.reach):
        gradients, looks = bench.gradients(bench.updates[0])
    norms = looks[-1].norms
    return ScalerBypassed(
        scale=scale,
        is_loss_scaled=_is_scaled(looks[-1], scale),
        divides_itself=any(group.get("fused") for group in bench.training.optimizer.param_groups),
        norm_after_backward=norms[-1][1] if norms else None,
        norm_at_step=norm_of(gradients.values()),
    )


def _is_scaled(look: Look, scale: float) -> bool:
    """Return whether backward is called on a far larger number than the loss. It may be divided by
    the number of micro-batches.
    """
    means = [call.mean for call in look.losses if math.isfinite(call.mean) and call.mean > 0]
    if not means or not look.roots:
        return False
    return look.roots[-1] > math.sqrt(scale) * max(means)
