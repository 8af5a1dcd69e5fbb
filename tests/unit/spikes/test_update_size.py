"""Updates that are far larger or smaller than usual at their learning rate."""

import numpy as np
import pytest

from sonde.spikes.update_size import UPDATE_SIZE, MeasuredSize, update_size

DICE = np.random.default_rng(3)


def measured(factors: np.ndarray, rates: np.ndarray) -> list[MeasuredSize]:
    noise = DICE.lognormal(0, 0.3, len(factors))
    ratios = 0.5 * rates * factors * noise
    return [
        MeasuredSize(50 * (place + 1), float(ratio), float(rate))
        for place, (ratio, rate) in enumerate(zip(ratios, rates, strict=True))
    ]


@pytest.mark.parametrize("factor", [100.0, 1e-4])
def test_a_size_that_stays_far_from_usual_is_told(factor: float) -> None:
    factors = np.r_[np.ones(20), factor, factor]
    found = update_size(measured(factors, np.full(22, 1e-3)))
    assert found is not None
    assert found.kind == UPDATE_SIZE
    assert found.step == 1100


def test_one_measurement_says_nothing() -> None:
    factors = np.r_[np.ones(20), 100.0]
    assert update_size(measured(factors, np.full(21, 1e-3))) is None


def test_sizes_that_follow_the_rate_are_usual() -> None:
    warm_up = np.linspace(1e-6, 1e-3, 10)
    decay = np.geomspace(1e-3, 1e-7, 40)
    sizes = measured(np.ones(50), np.r_[warm_up, decay])
    assert [update_size(sizes[:count]) for count in range(51)] == [None] * 51


def test_an_unknown_rate_says_nothing() -> None:
    factors = np.r_[np.ones(20), 100.0, 100.0]
    assert update_size(measured(factors, np.full(22, np.nan))) is None
