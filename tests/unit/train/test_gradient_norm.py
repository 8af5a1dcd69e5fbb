"""The norm of all gradients, whatever they are like."""

import math

import pytest
import torch
from torch import nn

from sonde.train.gradient_norm import GradientNorm

SHAPES = [(3, 4), (1,), (130, 70), (2, 3, 5), (20_000,)]


def parameters_with_gradients(dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    return parameters


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12), (torch.bfloat16, 1e-2)]
)
def test_the_norm_is_that_of_all_gradients_small_and_large(dtype: torch.dtype, tolerance: float) -> None:
    parameters = parameters_with_gradients(dtype)
    values = torch.cat([p.grad.double().flatten() for p in parameters if p.grad is not None])
    assert GradientNorm(parameters).measure() == pytest.approx(float(values.norm()), rel=tolerance)


def test_a_gradient_that_is_not_contiguous_counts_like_any_other() -> None:
    parameter = nn.Parameter(torch.zeros(4, 3))
    parameter.grad = torch.arange(12.0).reshape(3, 4).T
    assert GradientNorm([parameter]).measure() == pytest.approx(math.sqrt(506.0))


@pytest.mark.parametrize("shape", [(3,), (20_000,)])
@pytest.mark.parametrize(("value", "is_nan"), [(math.nan, True), (math.inf, False), (3e38, False)])
def test_what_is_not_finite_and_what_overflows_is_seen(shape: tuple[int, ...], value: float, is_nan: bool) -> None:
    parameter = nn.Parameter(torch.zeros(shape))
    parameter.grad = torch.full(shape, value)
    norm = GradientNorm([parameter]).measure()
    assert math.isnan(norm) == is_nan
    assert not math.isfinite(norm)
