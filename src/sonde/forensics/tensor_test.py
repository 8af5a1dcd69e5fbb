"""Compare the weights and moments of two checkpoints, to find values that training cannot have
produced.

Adam bounds how far a weight moves and how large its first moment is. Each moment is a weighted sum
of the same gradients, m = Σ (1-β1) β1^i g_i and v = Σ (1-β2) β2^i g_i². By the Cauchy-Schwarz
inequality

    m² ≤ v · (1-β1)² / ((1-β2) (1 - β1²/β2))          for β1² < β2

for any gradients: with β = (0.9, 0.98), |m|/√v never exceeds 1.70. An update therefore moves a
weight by at most that many learning rates (times the bias correction), plus the decay. A weight
that moved further, or a moment that is larger, was changed by something else.

Second moments cannot shrink faster than they decay either: after n updates, v is at least β2^n
times its earlier value. And weights in training move away from where they were, so weights close to
an older checkpoint again were restored from it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from sonde.forensics.laboratory import Laboratory

_SLACK: Final = 1.05
"""Tolerance for rounding."""
_EPSILON: Final = 1e-7
_FALLEN: Final = 0.9
"""A second moment below this fraction of what decay leaves is smaller than training can make it."""
_FALLEN_SHARE: Final = 0.3
"""Single elements may fall below that by rounding, but not this fraction of a tensor."""
_TINY_MOMENT: Final = 1e-24
_Moments: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The optimizer's state of each parameter, by name."""
_OLDER: Final = (1, 2, 3, 5, 8, 13)
"""How many checkpoints back to look for the origin of restored weights."""
_NEAR: Final = 0.6
"""Weights were restored if their distance to an older checkpoint is less than this fraction of the
previous one's distance.
"""


class AdamSettings(NamedTuple):
    """The hyperparameters that bound the updates of a parameter group."""

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
        """Return the largest possible update, in learning rates, after `num_updates` updates; at
        least one.
        """
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


class TensorTest(NamedTuple):
    """What is wrong with the state of a checkpoint."""

    before: int
    """The earlier checkpoint."""
    after: int
    """The later checkpoint."""
    weights: Sequence[OutlyingTensor]
    """Weights that moved too far."""
    moments: Sequence[OutlyingTensor]
    """First moments in the later checkpoint that are too large."""
    fallen: Sequence[tuple[str, float]]
    """Second moments that are too small, with the fraction of their elements."""
    num_moments: int
    """The number of parameters with moments in the earlier checkpoint."""
    steps: tuple[float, float] | None
    """The optimizer's step counts (before, after) if the count went down."""
    stale: int | None
    """The older checkpoint that the weights were restored from."""
    is_before_good: bool
    """Whether the earlier checkpoint has no outlying moments."""

    @property
    def where(self) -> str:
        """A description of the two checkpoints."""
        good = f"; the one after {self.before} is good" if self.is_before_good else ""
        return f"that is in the checkpoint after step {self.after}{good}"


def compare_tensors(lab: Laboratory, before: int, after: int) -> TensorTest:
    """Compare the weights and moments of a checkpoint with those of an earlier one."""
    old = lab.checkpoint(before)
    new = lab.checkpoint(after)
    adam = adam_settings(new["optimizer"]["param_groups"][0])
    then = _moments(lab, old)
    now = _moments(lab, new)
    rates = [
        lab.case.steps[step].lr for step in range(before + 1, after + 1) if step in lab.case.steps
    ]
    bounds = adam if len(rates) == after - before else None
    test = TensorTest(
        before=before,
        after=after,
        weights=outlying_weights(
            old["model"], new["model"], settings=bounds, rates=rates, num_updates=before
        ),
        moments=outlying_moments(now, adam) if adam else [],
        fallen=fallen_moments(then, now, adam, after - before) if adam else [],
        num_moments=sum("exp_avg_sq" in state for state in then.values()),
        steps=lost_steps(then, now),
        stale=stale_checkpoint(lab, before, after),
        is_before_good=not (adam and outlying_moments(then, adam)),
    )
    lab.note(
        "which tensor?",
        f"the checkpoint after step {after} against that after {before}",
        _describe(test),
        **{name: float(len(getattr(test, name))) for name in ("weights", "moments", "fallen")},
    )
    return test


def older_checkpoints(lab: Laboratory, before: int) -> list[int]:
    """Return checkpoints before `before`, newest first: the last few, and increasingly sparse ones
    further back.
    """
    older = [checkpoint for checkpoint in lab.replay.checkpoints() if checkpoint < before]
    return [older[-back] for back in _OLDER if back <= len(older)]


def stale_checkpoint(lab: Laboratory, before: int, after: int) -> int | None:
    """Return the older checkpoint that the weights were restored from, or None."""
    old = lab.checkpoint(before)["model"]
    new = lab.checkpoint(after)["model"]
    moved = distance(new, old)
    near = []
    for step in older_checkpoints(lab, before):
        there = lab.replay.state_after(step)["model"]
        back = distance(new, there)
        away = distance(old, there)
        if away > 0 and back < _NEAR * min(away, moved):
            near.append((back, step))
    return min(near)[1] if near else None


def _describe(test: TensorTest) -> str:
    worst = [
        f"{tensor.name} ({tensor.num_elements} elements)"
        for tensor in (*test.moments[:2], *test.weights[:2])
    ]
    sentences = [f"beyond what Adam can have done: {', '.join(worst)}"] if worst else []
    if test.fallen:
        sentences.append(
            f"the second moments of {len(test.fallen)} parameters are smaller than decay can have"
            " made them"
        )
    if test.steps:
        sentences.append(
            f"the optimizer had counted {test.steps[0]:.0f} steps and then {test.steps[1]:.0f}"
        )
    if test.stale is not None:
        sentences.append(f"the weights are back near those after step {test.stale}")
    return "; ".join(sentences) or "nothing is beyond what Adam can have done"


def _moments(lab: Laboratory, saved: Mapping[str, Any]) -> _Moments:
    """Return the optimizer state of each parameter in a checkpoint. Its keys are integers, or
    strings if it came from JSON.
    """
    names = {id(parameter): name for name, parameter in lab.replay.model.named_parameters()}
    parameters = [
        parameter for group in lab.replay.optimizer.param_groups for parameter in group["params"]
    ]
    states = saved["optimizer"]["state"]
    return {
        names.get(id(parameter), str(place)): states.get(place, states.get(str(place), {}))
        for place, parameter in enumerate(parameters)
    }


def first_weights(lab: Laboratory) -> list[float]:
    """Return the RMS of each matrix before the first update, smallest first."""
    lab.replay.go_to(1)
    found = sorted(
        _rms([parameter]) for parameter in lab.replay.model.parameters() if parameter.ndim > 1
    )
    lab.rewind()
    return found


def note_state(lab: Laboratory) -> None:
    """Record the size of weights and moments before the step."""
    weights = list(lab.replay.model.parameters())
    numbers = {
        "weights_rms": _rms(weights),
        "weights_max": max(float(weight.detach().abs().max()) for weight in weights),
    }
    found = (
        f"the size of weights is {numbers['weights_rms']:.3g} (root of the mean square), at most"
        f" {numbers['weights_max']:.3g}"
    )
    of_parameters = lab.replay.optimizer.state.values()
    states = [state for state in of_parameters if {"exp_avg", "exp_avg_sq"} <= set(state)]
    if states:
        ratios = [
            state["exp_avg"] / state["exp_avg_sq"].sqrt().clamp_min(1e-12) for state in states
        ]
        numbers |= {
            "moments_rms": _rms([state["exp_avg"] for state in states]),
            "moments_ratio": _rms(ratios),
        }
        found += (
            f"; that of first moments {numbers['moments_rms']:.3g}, {numbers['moments_ratio']:.2g}"
            " times the roots of the second"
        )
    lab.note(
        "what are weights and moments like?",
        f"the state before step {lab.case.step}",
        found,
        **numbers,
    )


def _rms(values: Sequence[Tensor]) -> float:
    flat = [value.detach().flatten().double() for value in values]
    return float(torch.cat(flat).square().mean().sqrt()) if flat else 0.0


def adam_settings(group: Mapping[str, Any]) -> AdamSettings | None:
    """Return the hyperparameters of Adam in a parameter group; None for other optimizers."""
    betas = group.get("betas")
    if not isinstance(betas, Sequence) or len(betas) != 2:
        return None
    return AdamSettings(float(betas[0]), float(betas[1]), float(group.get("weight_decay", 0.0)))


def outlying_moments(moments: _Moments, settings: AdamSettings) -> list[OutlyingTensor]:
    """Return the parameters whose moments no gradients can have produced, worst first."""
    limit = settings.max_ratio * _SLACK
    found: list[OutlyingTensor] = []
    for name, state in moments.items():
        first = state.get("exp_avg")
        second = state.get("exp_avg_sq")
        if not isinstance(first, Tensor) or not isinstance(second, Tensor):
            continue
        first = first.detach().double()
        second = second.detach().double()
        bound = limit * second.clamp_min(0).sqrt() + 1e-20
        ratio = torch.where(
            first.isfinite() & second.isfinite() & (second >= 0), first.abs() / bound, math.inf
        )
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
    """Return the weights that moved further than updates with these learning rates can move them,
    worst first.

    Without `settings`, only non-finite weights are found. `num_updates` is the number of updates
    made before the first of `rates`.
    """
    total = sum(abs(rate) for rate in rates)
    found: list[OutlyingTensor] = []
    for name, new in now.items():
        old = before.get(name)
        if old is None or old.shape != new.shape or not new.is_floating_point() or not new.numel():
            continue
        old = old.detach().double()
        new = new.detach().double()
        bound = torch.tensor(math.inf)
        if settings is not None:
            decay = settings.weight_decay * total
            bound = settings.max_step(num_updates + 1) * total * _SLACK + decay * torch.maximum(
                old.abs(), new.abs()
            )
            bound = bound + _EPSILON * old.abs() + 1e-12
        ratio = torch.where(new.isfinite() & old.isfinite(), (new - old).abs() / bound, math.inf)
        found += _worst(name, ratio, new, old)
    return sorted(found, key=lambda tensor: -tensor.ratio)


def fallen_moments(
    before: _Moments, now: _Moments, settings: AdamSettings, num_updates: int
) -> list[tuple[str, float]]:
    """Return the parameters whose second moments shrank faster than decay allows, with the fraction
    of their elements.
    """
    least = settings.beta2**num_updates * _FALLEN
    found = []
    for name, old in before.items():
        earlier = old.get("exp_avg_sq")
        later = now[name].get("exp_avg_sq")
        if not isinstance(earlier, Tensor) or not earlier.numel():
            continue
        known = earlier.double() > _TINY_MOMENT
        if not isinstance(later, Tensor):
            found.append((name, 1.0))
        elif later.shape == earlier.shape and bool(known.any()):
            has_fallen = later.double() < least * earlier.double()
            share = float(has_fallen[known].double().mean())
            if share > _FALLEN_SHARE:
                found.append((name, share))
    return found


def lost_steps(before: _Moments, now: _Moments) -> tuple[float, float] | None:
    """Return the optimizer's step counts (before, now) if the count went down, otherwise None."""
    old, new = (
        max((float(moment["step"]) for moment in moments.values() if "step" in moment), default=0.0)
        for moments in (before, now)
    )
    return (old, new) if new < old else None


def distance(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """Return the norm of the difference of all weights that both have in the same shape."""
    squares = []
    for name, weight in weights.items():
        other = others.get(name)
        if other is not None and weight.shape == other.shape and weight.is_floating_point():
            squares.append(float((weight.double() - other.double()).square().sum()))
    return math.sqrt(sum(squares))


def _worst(name: str, ratio: Tensor, values: Tensor, before: Tensor | None) -> list[OutlyingTensor]:
    """Return the tensor if it has elements beyond the bound."""
    num = int((ratio > 1).sum())
    if not num:
        return []
    place = int(ratio.argmax())
    old = None if before is None else float(before.flatten()[place])
    return [
        OutlyingTensor(
            name, float(ratio.flatten()[place]), num, float(values.flatten()[place]), old
        )
    ]
