"""Curves: thinned without losing a peak, cut, and as a line of blocks."""

import math

import numpy as np
import pytest

from sonde.report.curve import Curve, smoothed, sparkline, thin


def curve(values: list[float], first: int = 1) -> Curve:
    return Curve(name="loss", steps=np.arange(first, first + len(values)), values=np.array(values))


def test_a_short_curve_is_left_as_it_is() -> None:
    thinned = thin(curve([3.0, 1.0, 2.0]), 10)
    assert thinned.steps.tolist() == [1, 2, 3]
    assert thinned.values.tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("num", [101, 5_000, 100_000])
@pytest.mark.parametrize("place", [0, 50, 77, 100])
def test_a_single_peak_and_a_single_dip_survive_thinning(num: int, place: int) -> None:
    values = np.random.default_rng(1).normal(size=num)
    values[place] = 50.0
    values[-place - 1] = -50.0
    if place == 50 and num == 101:
        values[49] = 50.0
    thinned = thin(curve(values.tolist()), 100)
    assert len(thinned) <= 100
    assert thinned.values.max() == 50.0
    assert thinned.values.min() == -50.0
    assert (thinned.steps[0], thinned.steps[-1]) == (1, num)
    assert bool(np.all(np.diff(thinned.steps) > 0))


def test_the_neighbourhood_of_an_event_is_kept_step_by_step() -> None:
    thinned = thin(curve([1.0] * 100_000), 400, around=[5_000], reach=40)
    assert set(range(4_960, 5_041)) <= set(thinned.steps.tolist())
    assert len(thinned) <= 400


def test_many_events_take_at_most_half_of_the_points() -> None:
    thinned = thin(curve([1.0] * 100_000), 400, around=range(1000, 90_000, 1000), reach=40)
    assert len(thinned) <= 400
    assert thinned.steps[-1] == 100_000


def test_values_that_are_not_finite_are_apart() -> None:
    broken = curve([1.0, math.nan, math.inf, 2.0])
    assert broken.finite().steps.tolist() == [1, 4]
    assert broken.broken().steps.tolist() == [2, 3]
    assert thin(broken, 10).values.tolist() == [1.0, 2.0]


def test_a_range_of_steps_includes_both_ends() -> None:
    assert curve([1.0, 2.0, 3.0, 4.0]).between(2, 3).values.tolist() == [2.0, 3.0]
    assert len(curve([1.0, 2.0]).between(None, None)) == 2


def test_a_line_of_blocks_shows_the_peak_of_every_stretch() -> None:
    assert sparkline(curve([0.0, 7.0, 3.0])) == "▁█▄"
    assert "█" in sparkline(curve([0.0] * 500 + [9.0] + [0.0] * 500), 20)
    assert len(sparkline(curve([1.0] * 500), 20)) == 20
    assert sparkline(curve([math.nan])) == ""


def test_a_smoothed_curve_is_the_mean_around_each_value() -> None:
    smooth = smoothed(curve([float(number % 2) for number in range(1000)]), 101)
    assert len(smooth) == 1000
    assert abs(smooth.values[500] - 0.5) < 0.01
    assert smoothed(curve([1.0, 2.0]), 0).values.tolist() == [1.0, 2.0]


def test_one_huge_value_does_not_swallow_the_digits_of_those_after_it() -> None:
    values = [2.0 + 0.01 * (number % 3) for number in range(5000)]
    values[100] = 1e30
    smooth = smoothed(curve(values), 50)
    assert abs(smooth.values[4000] - 2.01) < 0.01


def test_a_spike_is_kept_when_it_is_named_even_beside_a_higher_one() -> None:
    values = [1.0] * 100_000
    values[50_000] = 9.0
    values[50_003] = 5.0
    assert 50_004 in thin(curve(values), 100, around=[50_004]).steps
