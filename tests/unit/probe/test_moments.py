"""Moments add up, and become msprobe's four statistics."""

import math

import numpy as np
import pytest

from sonde.probe.numpy_arrays import Moments, add, add_zeros, measure, write_statistics
from sonde.probe.walk import Leaf


def written(values: list[float], *, single: bool = True) -> Leaf:
    leaf: Leaf = {"Max": None, "Min": None, "Mean": None, "Norm": None}
    write_statistics(leaf, measure(np.array(values)), single=single)
    return leaf


def test_moments_of_two_halves_are_those_of_the_whole() -> None:
    values = np.array([3.0, -4.0, 0.0, math.nan, math.inf, -math.inf, 7.5])
    assert add(measure(values[:3]), measure(values[3:])) == measure(values)
    assert add(Moments(), measure(values)) == add(measure(values), Moments()) == measure(values)


def test_zeros_that_a_sparse_tensor_does_not_store_count() -> None:
    moments = add_zeros(measure(np.array([-3.0, -4.0])), 2)
    assert (moments.num, moments.max, moments.num_zero, moments.norm) == (4, 0.0, 2, 5.0)


def test_finite_values_have_no_separate_finite_statistics() -> None:
    leaf = written([3.0, 4.0])
    assert (leaf["Max"], leaf["Min"], leaf["Mean"], leaf["Norm"]) == (4.0, 3.0, 3.5, 5.0)
    assert "finite" not in leaf


def test_a_nan_makes_all_four_nan_and_the_finite_ones_stand_beside() -> None:
    leaf = written([3.0, math.nan, 4.0, math.inf])
    assert all(math.isnan(leaf[name]) for name in ("Max", "Min", "Mean", "Norm"))
    assert leaf["finite"] == {"Max": 4.0, "Min": 3.0, "Mean": 3.5, "Norm": 5.0}
    assert (leaf["num_nan"], leaf["num_inf"]) == (1, 1)
    assert "num_zero" not in leaf


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, math.inf], (math.inf, 1.0, math.inf, math.inf)),
        ([1.0, -math.inf], (1.0, -math.inf, -math.inf, math.inf)),
        ([math.inf, math.inf], (math.inf, math.inf, math.inf, math.inf)),
        ([-math.inf], (-math.inf, -math.inf, -math.inf, math.inf)),
    ],
)
def test_infinities_give_what_plain_reductions_give(
    values: list[float], expected: tuple[float, ...]
) -> None:
    leaf = written(values)
    assert tuple(leaf[name] for name in ("Max", "Min", "Mean", "Norm")) == expected
    assert expected[:3] == tuple(
        float(value) for value in (np.max(values), np.min(values), np.mean(values))
    )


def test_infinities_of_both_signs_have_no_mean() -> None:
    assert math.isnan(written([math.inf, -math.inf])["Mean"])


def test_a_norm_beyond_float32_is_kept_as_float64() -> None:
    assert written([3e38, 3e38])["Norm"] == pytest.approx(math.sqrt(2) * 3e38)


def test_mean_and_norm_are_rounded_to_float32_only_for_singles() -> None:
    assert written([1.0, 1.0, 1.0 + 1e-12])["Mean"] == 1.0
    assert written([1.0, 1.0, 1.0 + 1e-12], single=False)["Mean"] > 1.0


def test_a_mask_has_any_and_all_and_no_mean() -> None:
    leaf: Leaf = {"Max": None, "Min": None, "Mean": None, "Norm": None}
    write_statistics(leaf, measure(np.array([1.0, 0.0, 1.0])), is_mask=True)
    assert (leaf["Max"], leaf["Min"], leaf["Mean"], leaf["num_zero"]) == (True, False, None, 1)


def test_nothing_has_no_statistics() -> None:
    leaf: Leaf = {"Max": None, "Min": None, "Mean": None, "Norm": None}
    write_statistics(leaf, Moments(), single=True)
    assert (leaf["Max"], leaf["Mean"], leaf["Norm"]) == (None, None, None)
