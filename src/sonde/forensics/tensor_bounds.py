"""Bounds on how far Adam can move a weight and how large its first moment can be. Anything beyond was not produced by training.

Each moment is a weighted sum of the same gradients, m = Σ (1-β1) β1^i g_i and v = Σ (1-β2) β2^i g_i². By the
Cauchy-Schwarz inequality

    m² ≤ v · (1-β1)² / ((1-β2) (1 - β1²/β2))          for β1² < β2

for any gradients: with β = (0.9, 0.98), |m|/√v never exceeds 1.70. An update therefore moves a weight by at most that
many learning rates (times the bias correction), plus the decay. A weight that moved further, or a moment that is
larger, was changed by something else.

Second moments cannot shrink faster than they decay either: after n updates, v is at least β2^n times its earlier value.
And weights in training move away from where they were, so weights close to an older checkpoint again were restored from
it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

_SLACK: Final = 1.05
"""Tolerance for rounding."""
_EPSILON: Final = 1e-7
_FALLEN: Final = 0.9
"""A second moment below this fraction of what decay leaves is smaller than training can make it."""
_FALLEN_SHARE: Final = 0.3
"""Single elements may fall below that by rounding, but not this fraction of a tensor."""
_TINY_MOMENT: Final = 1e-24


class AdamSettings(NamedTuple):
    """The settings that bound the updates of a parameter group."""

    beta1: float
    """The decay rate of the first moment."""
    beta2: float
    """The decay rate of the second moment."""
    weight_decay: float
    """The weight decay per update, in learning rates."""

    @property
    def max_ratio(self) -> float:
        """The largest |m|/√v that gradients can produce; infinite if there is no bound."""
        decay = self.beta1**2 / self.beta2
        if not 0 < self.beta2 < 1 or decay >= 1:
            return math.inf
        return math.sqrt((1 - self.beta1) ** 2 / ((1 - self.beta2) * (1 - decay)))

    def max_step(self, num_updates: int) -> float:
        """Return the largest possible update, in learning rates, after `num_updates` updates."""
        if num_updates < 1:
            return math.inf
        correction = math.sqrt(1 - self.beta2**num_updates) / (1 - self.beta1**num_updates)
        return self.max_ratio * max(correction, 1.0)


class OutlyingTensor(NamedTuple):
    """A tensor with elements that training cannot have produced."""

    name: str
    """The name of the parameter."""
    ratio: float
    """The worst element relative to the bound; infinite if it is not finite."""
    num_elements: int
    """The number of elements beyond the bound."""
    worst: float
    """The worst element."""
    before: float | None = None
    """The value of that element in the earlier checkpoint."""


def adam_settings(group: Mapping[str, Any]) -> AdamSettings | None:
    """Return the Adam settings of a parameter group; None for other optimizers."""
    betas = group.get("betas")
    if not isinstance(betas, Sequence) or len(betas) != 2:
        return None
    return AdamSettings(float(betas[0]), float(betas[1]), float(group.get("weight_decay", 0.0)))


def outlying_moments(
    names: Sequence[str], states: Sequence[Mapping[str, Any]], settings: AdamSettings
) -> list[OutlyingTensor]:
    """Return the parameters whose moments no gradients can have produced, worst first. `states` is parallel to `names`."""
    limit = settings.max_ratio * _SLACK
    found: list[OutlyingTensor] = []
    for name, state in zip(names, states, strict=False):
        first, second = state.get("exp_avg"), state.get("exp_avg_sq")
        if not isinstance(first, Tensor) or not isinstance(second, Tensor):
            continue
        first, second = first.detach().double(), second.detach().double()
        bound = limit * second.clamp_min(0).sqrt() + 1e-20
        ratio = torch.where(first.isfinite() & second.isfinite() & (second >= 0), first.abs() / bound, math.inf)
        # Values this small underflow in float32 and are not informative.
        ratio = torch.where((first.abs() < 1e-18) & second.isfinite(), 0.0, ratio)
        found += _worst(name, ratio, first, None)
    return sorted(found, key=lambda tensor: -tensor.ratio)


def outlying_weights(
    before: Mapping[str, Tensor],
    now: Mapping[str, Tensor],
    *,
    settings: AdamSettings | None,
    rates: Sequence[float],
    num_updates: int,
) -> list[OutlyingTensor]:
    """Return the weights that moved further than updates with these learning rates can move them, worst first.

    Without `settings`, only non-finite weights are found. `num_updates` is the number of updates made before the first
    of `rates`.
    """
    total = sum(abs(rate) for rate in rates)
    found: list[OutlyingTensor] = []
    for name, new in now.items():
        old = before.get(name)
        if old is None or old.shape != new.shape or not new.is_floating_point() or not new.numel():
            continue
        old, new = old.detach().double(), new.detach().double()
        if settings is None:
            bound = torch.full_like(new, math.inf)
        else:
            decay = settings.weight_decay * total
            bound = settings.max_step(num_updates + 1) * total * _SLACK + decay * torch.maximum(old.abs(), new.abs())
            bound = bound + _EPSILON * old.abs() + 1e-12
        moved = torch.where(new.isfinite() & old.isfinite(), (new - old).abs(), math.inf)
        ratio = torch.where(moved.isinf(), math.inf, moved / bound)
        found += _worst(name, ratio, new, old)
    return sorted(found, key=lambda tensor: -tensor.ratio)


def fallen_moments(
    names: Sequence[str],
    before: Sequence[Mapping[str, Any]],
    now: Sequence[Mapping[str, Any]],
    settings: AdamSettings,
    num_updates: int,
) -> list[tuple[str, float]]:
    """Return the parameters whose second moments shrank faster than decay allows, with the fraction of their elements."""
    least = settings.beta2**num_updates * _FALLEN
    found = []
    for name, old, new in zip(names, before, now, strict=False):
        first, second = old.get("exp_avg_sq"), new.get("exp_avg_sq")
        if not isinstance(first, Tensor) or not first.numel():
            continue
        known = first.double() > _TINY_MOMENT
        if not isinstance(second, Tensor):
            found.append((name, 1.0))
        elif second.shape == first.shape and bool(known.any()):
            share = float((second.double() < least * first.double())[known].double().mean())
            found += [(name, share)] if share > _FALLEN_SHARE else []
    return found


def lost_steps(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Return the optimizer's step counts (before, now) if the count went down, otherwise None."""
    old = max((float(one["step"]) for one in before if "step" in one), default=0.0)
    new = max((float(one["step"]) for one in now if "step" in one), default=0.0)
    return (old, new) if new < old else None


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the norm of the difference of all weights."""
    squares = [
        float((one[name].double() - other[name].double()).square().sum())
        for name in one
        if name in other and one[name].shape == other[name].shape and one[name].is_floating_point()
    ]
    return math.sqrt(sum(squares))


def _worst(name: str, ratio: Tensor, values: Tensor, before: Tensor | None) -> list[OutlyingTensor]:
    """Return the tensor if it has elements beyond the bound."""
    num = int((ratio > 1).sum())
    if not num:
        return []
    place = int(ratio.argmax())
    old = None if before is None else float(before.flatten()[place])
    return [OutlyingTensor(name, float(ratio.flatten()[place]), num, float(values.flatten()[place]), old)]
