"""What Adam can have done: real training never exceeds the bounds, and what something else wrote
does.
"""

import math

import pytest
import torch

from sonde.forensics.tensor_test import (
    AdamSettings,
    adam_settings,
    outlying_moments,
    outlying_weights,
)


def trained(
    betas: tuple[float, float], num_updates: int
) -> tuple[torch.Tensor, torch.Tensor, torch.optim.Optimizer]:
    """A weight before and after updates with wild gradients, and the optimizer that made them."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(20, 20, generator=generator).requires_grad_()
    before = weight.detach().clone()
    optimizer = torch.optim.AdamW([weight], lr=0.01, betas=betas, weight_decay=0.1)
    for update in range(num_updates):
        scale = 10.0 ** float(torch.randint(-6, 6, (1,), generator=generator))
        weight.grad = torch.randn(20, 20, generator=generator) * scale * (1 if update % 3 else 0)
        optimizer.step()
    return before, weight.detach(), optimizer


def settings(optimizer: torch.optim.Optimizer) -> AdamSettings:
    found = adam_settings(optimizer.param_groups[0])
    assert found is not None
    return found


@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.9, 0.999), (0.5, 0.9)])
@pytest.mark.parametrize("num_updates", [1, 3, 60])
def test_no_gradients_take_adam_beyond_the_bounds(
    betas: tuple[float, float], num_updates: int
) -> None:
    before, after, optimizer = trained(betas, num_updates)
    of_adam = settings(optimizer)
    (state,) = optimizer.state.values()
    assert outlying_moments({"w": state}, of_adam) == []
    rates = [0.01] * num_updates
    assert (
        outlying_weights({"w": before}, {"w": after}, settings=of_adam, rates=rates, num_updates=0)
        == []
    )


def test_the_bound_is_the_one_of_cauchy_and_schwarz() -> None:
    assert AdamSettings(beta1=0.9, beta2=0.98, weight_decay=0.0).max_ratio == pytest.approx(
        1.698, abs=1e-3
    )
    assert AdamSettings(beta1=0.9, beta2=0.5, weight_decay=0.0).max_ratio == math.inf


def test_a_blown_moment_is_named_with_its_elements() -> None:
    _, _, optimizer = trained((0.9, 0.98), 60)
    state = dict(next(iter(optimizer.state.values())))
    state["exp_avg"] = state["exp_avg"].clone()
    state["exp_avg"][3, :5] *= 1e6
    (found,) = outlying_moments({"w": state}, settings(optimizer))
    assert (found.name, found.num_elements) == ("w", 5)
    assert found.ratio > 100


def test_a_weight_that_jumped_is_named_with_what_it_was() -> None:
    before, after, optimizer = trained((0.9, 0.98), 10)
    spoiled = after.clone()
    spoiled[2, 2] = 40.0
    spoiled[0, 0] = math.nan
    (found,) = outlying_weights(
        {"w": before},
        {"w": spoiled},
        settings=settings(optimizer),
        rates=[0.01] * 10,
        num_updates=0,
    )
    assert (found.num_elements, found.ratio) == (2, math.inf)


def test_an_unknown_optimiser_only_shows_what_is_not_finite() -> None:
    assert adam_settings({"lr": 0.1, "momentum": 0.9}) is None
    before = {"w": torch.zeros(4)}
    moved = {"w": torch.full((4,), 1e6)}
    assert outlying_weights(before, moved, settings=None, rates=[], num_updates=5) == []
    broken = {"w": torch.tensor([0.0, math.inf, 0.0, 0.0])}
    assert (
        outlying_weights(before, broken, settings=None, rates=[], num_updates=5)[0].num_elements
        == 1
    )
