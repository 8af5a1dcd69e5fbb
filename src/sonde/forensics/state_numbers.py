"""Weights and moments in numbers: what an expert would look at first."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sonde.forensics.laboratory import Laboratory


def first_weights(lab: Laboratory) -> list[float]:
    """The size of each matrix before the first update, smallest first: the root of its mean square."""
    lab.replay.go_to(1)
    found = sorted(_rms([one]) for one in lab.replay.model.parameters() if one.ndim > 1)
    lab.rewind()
    return found


def note_state(lab: Laboratory) -> None:
    """Write down what weights and moments are like before the step."""
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
