import math

import pytest

from sonde import metrics
from sonde.metrics.meters import bucket_of, middle_of


def test_bucket_numbers_are_ordered_like_the_values() -> None:
    values = [-1e300, -7.0, -1.0, -1e-11, -1e-300, 0.0, 5e-324, 1e-11, 1.0, 1.02, 7.0, 1e300]
    numbers = [bucket_of(value) for value in values]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (-5120, 5120)
    assert bucket_of(-1e-300) == bucket_of(5e-324) == 0


@pytest.mark.parametrize("value", [1.0, -1.0, 3.14159, 1e-9, -123456.789, 2.0**39])
def test_the_middle_of_a_bucket_is_close_to_its_values(value: float) -> None:
    assert middle_of(bucket_of(value)) == pytest.approx(value, rel=1 / 128)


def test_a_bucket_begins_at_a_power_of_two() -> None:
    assert bucket_of(2.0) == bucket_of(math.nextafter(2.0, 0.0)) + 1


def test_an_answer_stays_between_the_extremes() -> None:
    huge = metrics.Quantile()
    tiny = metrics.Quantile()
    huge.update(1e300)
    huge.update(2e300)
    tiny.update(1e-20)
    assert (huge.value, tiny.value) == (1e300, 1e-20)
    assert math.isnan(metrics.Quantile().value)
