import json
import math
from collections.abc import Callable

import pytest

from sonde import metrics
from sonde.errors import SettingError

FACTORIES: list[Callable[..., metrics.Meter]] = [
    metrics.Average,
    metrics.Sum,
    metrics.Maximum,
    metrics.Minimum,
    metrics.Quantile,
    metrics.Rate,
    metrics.Stopwatch,
]
EXPECTED = {
    "average": 2.0,
    "sum": 8.0,
    "maximum": 4.0,
    "minimum": 1.0,
    "quantile": pytest.approx(1.0, rel=1 / 128),
}


@pytest.mark.parametrize(
    "make", [metrics.Average, metrics.Sum, metrics.Maximum, metrics.Minimum, metrics.Quantile]
)
def test_each_meter_says_its_quantity(make: Callable[[], metrics.Meter]) -> None:
    meter = make()
    assert math.isnan(meter.value)
    for value in (1, 4.0, 1.0, 2):
        meter.update(value)
    assert meter.value == EXPECTED[meter.kind]


@pytest.mark.parametrize("make", FACTORIES)
def test_every_meter_can_be_reset_saved_as_json_and_restored_exactly(
    make: Callable[[], metrics.Meter],
) -> None:
    meter = make()
    for value in (0.1, 0.2, math.nan, 1e20, math.inf, -3.5):
        meter.update(value)
    saved = json.dumps(meter.state_dict(), allow_nan=False)
    restored = make()
    restored.update(99)
    restored.load_state_dict(json.loads(saved))
    ours = restored.state_dict()
    theirs = meter.state_dict()
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    assert restored.nonfinite == meter.nonfinite == 2
    meter.reset()
    assert not meter.has_data
    assert meter.nonfinite == 0
    assert math.isnan(meter.value)


@pytest.mark.parametrize("make", FACTORIES)
def test_every_meter_rounds_for_display(make: Callable[..., metrics.Meter]) -> None:
    meter = make(round=2)
    assert meter.round == 2
    meter.update(1.23456)
    if not isinstance(meter, metrics.Rate):
        assert meter.smoothed_value == 1.23
        assert meter.value == pytest.approx(1.23456, rel=0.01)


@pytest.mark.parametrize(
    "make", [metrics.Average, metrics.Sum, metrics.Maximum, metrics.Minimum, metrics.Quantile]
)
def test_a_nan_is_counted_and_does_not_destroy_the_rest(make: Callable[[], metrics.Meter]) -> None:
    meter = make()
    for value in (1, math.nan, 4.0, math.inf, 1.0, -math.inf, 2):
        meter.update(value)
    assert meter.nonfinite == 3
    assert meter.value == EXPECTED[meter.kind]


def test_an_average_of_nothing_but_nan_shows_nan() -> None:
    meter = metrics.Average()
    meter.update(math.nan, 3)
    assert meter.has_data
    assert math.isnan(meter.value)
    assert (meter.nonfinite, meter.count) == (1, 0)


def test_the_latest_value_is_available_beside_the_average() -> None:
    meter = metrics.Average()
    meter.update(1.0)
    meter.update(math.nan)
    assert meter.value == 1.0
    assert meter.val is not None
    assert math.isnan(meter.val)
    assert (meter.sum, meter.count) == (1.0, 1.0)


def test_a_weight_that_is_not_finite_counts_as_a_bad_value() -> None:
    meter = metrics.Average()
    meter.update(1.0, 2)
    meter.update(1.0, math.nan)
    meter.update(1e308, 1e308)
    meter.update(5.0, 10**400)
    assert (meter.value, meter.count, meter.nonfinite) == (1.0, 2.0, 3)


@pytest.mark.parametrize("weight", [math.nan, 10**400, 1e308])
def test_a_weight_of_log_scalar_that_is_not_finite_counts_as_a_bad_value(weight: float) -> None:
    with metrics.aggregate() as agg:
        metrics.log_scalar("x", 5.0)
        metrics.log_scalar("x", 1e10, weight)
    assert agg.get_smoothed_values() == {"x": 5.0, "x_nonfinite": 1}


def test_numbers_of_other_libraries_are_taken() -> None:
    import decimal

    import numpy as np

    meter = metrics.Average()
    for value in (np.float32(1.5), np.int64(1), decimal.Decimal("1.5"), True, np.array(2.5)):
        meter.update(value, np.int32(2))
    assert meter.value == 1.5


@pytest.mark.parametrize("bad", ["high", [1, 2], 1j])
def test_what_is_no_number_is_refused_with_its_value(bad: object) -> None:
    meter = metrics.Average()
    with pytest.raises(SettingError, match="one real number"):
        meter.update(bad)
    with pytest.raises(SettingError, match="weight"):
        meter.update(1.0, bad)
    assert not meter.has_data


def test_a_quantile_meter_answers_for_any_quantile_and_keeps_its_memory_bounded() -> None:
    meter = metrics.Quantile(0.95)
    for value in range(1, 10001):
        meter.update(value)
    assert meter.value == pytest.approx(9500, rel=1 / 128)
    assert meter.at(0.5) == pytest.approx(5000, rel=1 / 128)
    assert meter.at(0.0) == pytest.approx(1, rel=1 / 128)
    assert meter.at(1.0) == pytest.approx(10000, rel=1 / 128)
    assert len(meter.state_dict()["buckets"]) < 64 * 14


def test_a_quantile_of_one_value_is_that_value() -> None:
    meter = metrics.Quantile(0.95)
    meter.update(1.2345)
    assert meter.value == 1.2345


def test_a_quantile_outside_0_to_1_is_refused() -> None:
    with pytest.raises(SettingError, match=r"0\.95"):
        metrics.Quantile(95)
