import math

import pytest

from sonde import metrics
from sonde.errors import SettingError
from sonde.metrics.inlet import FOLD_AFTER, Inlet, plain_number


def test_values_wait_until_there_are_enough_or_a_meter_is_read() -> None:
    meters = (metrics.Average(), metrics.Average())
    inlet = Inlet(meters)
    for _ in range(FOLD_AFTER - 1):
        inlet.push(1.0, 1)
    assert len(inlet.numbers) == FOLD_AFTER - 1
    inlet.push(1.0, 1)
    assert inlet.numbers == []
    inlet.push(3.0, FOLD_AFTER)
    assert meters[0].value == 2.0
    assert inlet.numbers == []
    assert meters[1].value == 2.0


def test_what_is_appended_to_a_closed_inlet_is_folded_at_once() -> None:
    """A thread may hold on to an inlet while another one closes it."""
    meter = metrics.Average()
    home: dict[str, Inlet] = {}
    inlet = Inlet((meter,), home=home, key="x")
    inlet.push(1.0, 1)
    inlet.close()
    assert home == {}
    assert meter._inlets == []
    inlet.push(3.0, 1)
    assert inlet.numbers == []
    assert meter.value == 2.0


def test_the_latest_value_is_known_whatever_inlet_is_folded_first() -> None:
    meter = metrics.Average()
    first, second = Inlet((meter,)), Inlet((meter,))
    first.push(1.0, 0)
    second.push(2.0, 0)
    second.drain()
    first.drain()
    assert meter.value == 2.0


def test_an_integer_too_large_for_a_float_is_infinite() -> None:
    assert plain_number(10**400, "value") == math.inf
    assert plain_number(-(10**400), "value") == -math.inf


def test_the_error_for_what_is_no_number_does_not_print_all_of_it() -> None:
    with pytest.raises(SettingError) as caught:
        plain_number("x" * 10_000, "value")
    assert len(caught.value.message) < 400
