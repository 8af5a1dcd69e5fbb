import math
import sys

from sonde.metrics import exact


def test_a_small_number_survives_beside_large_ones_that_cancel() -> None:
    assert exact.nearest_float(exact.units_of_sum([1e300, 1e-300, -1e300])) == 1e-300


def test_the_smallest_and_the_largest_float_are_whole_numbers_of_units() -> None:
    for value in (5e-324, sys.float_info.max, -sys.float_info.min, 0.0):
        assert exact.nearest_float(exact.units_of(value)) == value


def test_ten_tenths_are_rounded_once() -> None:
    assert exact.nearest_float(exact.units_of_sum([0.1] * 10)) == math.fsum([0.1] * 10)
    assert exact.ratio(exact.units_of_sum([0.1] * 10), exact.units_of(10)) == 0.1


def test_a_sum_beyond_the_largest_float_is_infinite_but_can_come_back() -> None:
    largest = sys.float_info.max
    units = exact.units_of_sum([largest, largest, largest])
    assert exact.nearest_float(units) == math.inf
    assert exact.nearest_float(-units) == -math.inf
    assert exact.nearest_float(units - exact.units_of(largest) * 2) == largest
    assert exact.to_floats(units) == [largest] * 3
    assert exact.from_floats(exact.to_floats(units)) == units


def test_limbs_fit_an_int64_and_can_be_added_before_they_are_put_together() -> None:
    first, second = exact.units_of(-sys.float_info.max), exact.units_of(math.pi)
    limbs = [a + b for a, b in zip(exact.limbs(first), exact.limbs(second), strict=True)]
    assert len(limbs) == exact.LIMBS
    assert max(map(abs, limbs)) < 2**33
    assert exact.from_limbs(limbs) == first + second
