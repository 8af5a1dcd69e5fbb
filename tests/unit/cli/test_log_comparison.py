import math

import numpy as np
import pytest

from sonde.cli.compare import LogComparison, ToleranceFlags, smoothed
from sonde.errors import SettingError
from sonde.records.columns import Series


def series(values: list[float], first: int = 0) -> Series:
    return Series(steps=np.arange(first, first + len(values)), values=np.array(values, float))


def test_errors_are_unsigned_and_a_is_the_reference() -> None:
    comparison = LogComparison(series([1.0, 2.0, 4.0]), series([1.1, 1.8, 4.0]))
    assert comparison.mean_absolute == pytest.approx(0.1)
    assert comparison.max_absolute == pytest.approx(0.2)
    assert comparison.mean_relative == pytest.approx((0.1 + 0.1 + 0) / 3)
    assert comparison.worst == 1


def test_only_common_steps_count_and_the_last_value_at_each() -> None:
    twice = Series(steps=np.array([0, 1, 1, 2]), values=np.array([0.0, 9.0, 1.0, 2.0]))
    comparison = LogComparison(twice, series([1.0, 2.0, 3.0], first=1))
    assert comparison.steps.tolist() == [1, 2]
    assert comparison.max_absolute == 0
    assert (comparison.num_only_a, comparison.num_only_b) == (1, 1)


def test_steps_may_be_lists() -> None:
    steps = np.array([[0, 1], [1, 1]])
    comparison = LogComparison(
        Series(steps=steps, values=np.ones(2)), Series(steps=steps[:1], values=np.ones(1))
    )
    assert comparison.steps.tolist() == [[0, 1]]


def test_zero_in_the_reference() -> None:
    assert LogComparison(series([0.0]), series([0.0])).mean_relative == 0
    assert LogComparison(series([0.0]), series([1.0])).mean_relative == math.inf


def test_nan_in_one_only_is_a_difference_and_in_both_is_none() -> None:
    one = LogComparison(series([1.0, math.nan]), series([1.0, 1.0]))
    both = LogComparison(series([1.0, math.nan]), series([1.0, math.inf]))
    assert not one.is_within(ToleranceFlags(rtol=1.0, atol=1.0))
    assert both.is_within(ToleranceFlags(rtol=0.0, atol=0.0))


@pytest.mark.parametrize(
    ("relative", "absolute", "within"), [(0.1, 0.0, True), (0.0, 0.2, True), (0.01, 0.01, False)]
)
def test_one_of_the_two_tolerances_is_enough(
    relative: float, absolute: float, within: bool
) -> None:
    comparison = LogComparison(series([2.0, 2.0]), series([2.1, 1.9]))
    assert comparison.is_within(ToleranceFlags(rtol=relative, atol=absolute)) is within


def test_smoothing_is_a_running_mean() -> None:
    assert smoothed(np.array([1.0, 2.0, 3.0, 4.0]), 2).tolist() == [1.0, 1.5, 2.5, 3.5]
    values = np.random.default_rng(1).normal(1e6, 1, 500)
    expected = [values[max(0, i - 49) : i + 1].mean() for i in range(500)]
    np.testing.assert_allclose(smoothed(values, 50), expected, rtol=1e-12)


def test_nothing_in_common_and_bad_windows_are_refused() -> None:
    with pytest.raises(SettingError, match="in common"):
        LogComparison(series([1.0]), series([1.0], first=5))
    with pytest.raises(SettingError, match="window"):
        LogComparison(series([1.0]), series([1.0]), window=0)
