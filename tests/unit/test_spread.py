"""How far a number is from many others."""

import math

from sonde.spread import Spread


def test_a_spread_is_not_moved_by_a_few_outliers() -> None:
    spread = Spread([*(float(number) for number in range(100)), 1e9, 1e9, math.nan])
    assert spread.median == 51
    assert 30 < spread.deviation < 45
    assert 8 < spread.z(400.0) < 11
    assert math.isnan(spread.z(math.inf))


def test_values_that_are_all_alike_still_have_a_deviation() -> None:
    spread = Spread([2.0] * 10)
    assert spread.deviation == 0.02
    assert math.isnan(Spread([]).median)
