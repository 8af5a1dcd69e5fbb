"""The window of the last numbers: median and spread against numpy's."""

import random

import numpy as np
import pytest

from sonde.spikes.detectors import Window


@pytest.mark.parametrize("size", [1, 2, 3, 16, 127, 128])
def test_median_and_spread_are_those_of_the_last_numbers(size: int) -> None:
    draw = random.Random(size)
    window = Window(size)
    values: list[float] = []
    for _ in range(3 * size):
        values.append(round(draw.gauss(0, 1), 1))  # many equal ones
        window.push(values[-1])
        last = np.array(values[-size:])
        assert window.median == pytest.approx(np.median(last))
        distances = np.sort(np.abs(last - np.median(last)))
        assert window.median_deviation() == pytest.approx(distances[len(last) // 2])
        assert window.mean() == pytest.approx(last.mean())
        if len(last) > 1:
            assert window.deviation() == pytest.approx(last.std(ddof=1))


def test_a_window_is_rebuilt_from_its_values_and_can_be_cleared() -> None:
    window = Window(3, [5.0, 1.0, 2.0, 9.0])
    assert list(window) == [1.0, 2.0, 9.0]
    assert Window(3, list(window)).median == window.median == 2.0
    window.clear()
    assert len(window) == 0
