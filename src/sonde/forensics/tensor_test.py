"""Compare the weights and moments of two checkpoints, to find values that training cannot have produced."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from sonde.forensics.laboratory import Laboratory
from sonde.forensics.tensor_bounds import (
    OutlyingTensor,
    adam_settings,
    distance,
    fallen_moments,
    lost_steps,
    outlying_moments,
    outlying_weights,
)

_OLDER: Final = (1, 2, 3, 5, 8, 13)
"""How many checkpoints back to look for the origin of restored weights."""
_NEAR: Final = 0.6
"""Weights were restored if their distance to an older checkpoint is less than this fraction of the previous one's distance."""


class TensorTest(NamedTuple):
    """What is wrong with the state of a checkpoint."""

    before: int
    """The earlier checkpoint."""
    after: int
    """The later checkpoint."""
    weights: tuple[OutlyingTensor, ...]
    """Weights that moved too far."""
    moments: tuple[OutlyingTensor, ...]
    """First moments in the later checkpoint that are too large."""
    fallen: tuple[tuple[str, float], ...]
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
        return f"that is in the checkpoint after update {self.after}{good}"


def compare_tensors(lab: Laboratory, before: int, after: int) -> TensorTest:
    """Compare the weights and moments of a checkpoint with those of an earlier one."""
    old, new = lab.checkpoint(before), lab.checkpoint(after)
    settings = adam_settings(new["optimizer"]["param_groups"][0])
    names = _parameter_names(lab)
    rates = [lab.case.steps[step].lr for step in range(before + 1, after + 1) if step in lab.case.steps]
    whole = len(rates) == after - before
    weights = outlying_weights(
        old["model"], new["model"], settings=settings if whole else None, rates=rates, num_updates=before
    )
    moments: list[OutlyingTensor] = []
    fallen: list[tuple[str, float]] = []
    earlier: list[OutlyingTensor] = []
    states = [_moments(one, len(names)) for one in (old, new)]
    if settings is not None:
        earlier, moments = (outlying_moments(names, one, settings) for one in states)
        fallen = fallen_moments(names, states[0], states[1], settings, after - before)
    test = TensorTest(
        before=before,
        after=after,
        weights=tuple(weights),
        moments=tuple(moments),
        fallen=tuple(fallen),
        num_moments=sum("exp_avg_sq" in one for one in states[0]),
        steps=lost_steps(states[0], states[1]),
        stale=_stale(lab, before, after),
        is_before_good=not earlier,
    )
    lab.note(
        "which tensor?",
        f"the checkpoint after update {after} against that after {before}",
        _told(test),
        weights=float(len(weights)),
        moments=float(len(moments)),
        fallen=float(len(fallen)),
    )
    return test


def older_checkpoints(lab: Laboratory, before: int) -> list[int]:
    """Return checkpoints before `before`, newest first: the last few, and increasingly sparse ones further back."""
    older = [one for one in lab.replay.checkpoints() if one < before]
    return [older[-back] for back in _OLDER if back <= len(older)]


def _stale(lab: Laboratory, before: int, after: int) -> int | None:
    """Return the older checkpoint that the weights were restored from, or None."""
    old, new = lab.checkpoint(before)["model"], lab.checkpoint(after)["model"]
    moved = distance(new, old)
    best: tuple[float, int] | None = None
    for step in older_checkpoints(lab, before):
        there = lab.replay.state_after(step)["model"]
        back, away = distance(new, there), distance(old, there)
        if away > 0 and back < _NEAR * away and back < _NEAR * moved:
            best = min(best or (back, step), (back, step))
    return None if best is None else best[1]


def _told(test: TensorTest) -> str:
    worst = [f"{one.name} ({one.num_elements} elements)" for one in (*test.moments[:2], *test.weights[:2])]
    told = [f"beyond what Adam can have done: {', '.join(worst)}"] if worst else []
    if test.fallen:
        told.append(f"the second moments of {len(test.fallen)} parameters are smaller than decay can have made them")
    if test.steps:
        told.append(f"the optimiser had counted {test.steps[0]:.0f} updates and then {test.steps[1]:.0f}")
    if test.stale is not None:
        told.append(f"the weights are back near those after update {test.stale}")
    return "; ".join(told) or "nothing is beyond what Adam can have done"


def _parameter_names(lab: Laboratory) -> list[str]:
    """Return the names of the optimizer's parameters, in its order."""
    names = {id(parameter): name for name, parameter in lab.replay.model.named_parameters()}
    groups = lab.replay.optimizer.param_groups
    return [names.get(id(parameter), "") for group in groups for parameter in group["params"]]


def _moments(saved: Mapping[str, Any], num: int) -> list[Mapping[str, Any]]:
    """Return the optimizer state of each parameter in a checkpoint. Its keys are integers, or strings if it came from JSON."""
    states = saved["optimizer"]["state"]
    return [states.get(place, states.get(str(place), {})) for place in range(num)]


def first_weights(lab: Laboratory) -> list[float]:
    """Return the RMS of each matrix before the first update, smallest first."""
    lab.replay.go_to(1)
    found = sorted(_rms([one]) for one in lab.replay.model.parameters() if one.ndim > 1)
    lab.rewind()
    return found


def note_state(lab: Laboratory) -> None:
    """Record the size of weights and moments before the step."""
    weights = list(lab.replay.model.parameters())
    numbers = {"weights_rms": _rms(weights), "weights_max": max(float(one.detach().abs().max()) for one in weights)}
    found = f"the size of weights is {numbers['weights_rms']:.3g} (root of the mean square), at most {numbers['weights_max']:.3g}"
    states = [one for one in lab.replay.optimizer.state.values() if {"exp_avg", "exp_avg_sq"} <= set(one)]
    if states:
        ratios = [one["exp_avg"] / one["exp_avg_sq"].sqrt().clamp_min(1e-12) for one in states]
        numbers |= {"moments_rms": _rms([one["exp_avg"] for one in states]), "moments_ratio": _rms(ratios)}
        found += f"; that of first moments {numbers['moments_rms']:.3g}, {numbers['moments_ratio']:.2g} times the roots of the second"
    lab.note("what are weights and moments like?", f"the state before step {lab.case.step}", found, **numbers)


def _rms(values: Sequence[Tensor]) -> float:
    flat = [one.detach().flatten().double() for one in values]
    return float(torch.cat(flat).square().mean().sqrt()) if flat else 0.0
