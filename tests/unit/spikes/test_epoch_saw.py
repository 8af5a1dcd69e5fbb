"""A loss that saws with the position in the epoch is told; stairs, restarts of the rate and noise
are not.
"""

import numpy as np
import pytest

from sonde.spikes.epoch_saw import epoch_saw
from sonde.spikes.quiet_rules import Floats

DICE = np.random.default_rng(7)
EPOCHS = np.arange(600) / 100.0
INSIDE = EPOCHS % 1
RATES = np.linspace(1e-3, 5e-4, 600)
FALLING = 2.0 + np.exp(-EPOCHS)


def is_told(losses: Floats, rates: Floats = RATES, epochs: Floats = EPOCHS) -> bool:
    noisy = losses + DICE.normal(0, 0.05, len(losses))
    return epoch_saw(np.arange(1.0, 601.0), epochs, noisy, rates) is not None


@pytest.mark.parametrize("slope", [0.8, -0.8])
def test_a_loss_that_saws_is_told(slope: float) -> None:
    assert is_told(3.0 + slope * INSIDE)
    assert is_told(3.0 + slope * INSIDE, epochs=np.floor(EPOCHS) + 1)


@pytest.mark.parametrize(
    "losses",
    [FALLING, np.full(600, 3.0), 3.0 - 0.3 * np.floor(EPOCHS), 3.0 + 0.05 * INSIDE],
)
def test_a_loss_that_falls_or_stands_or_goes_down_in_stairs_is_not_told(losses: Floats) -> None:
    assert not is_told(losses)


def test_a_rate_that_starts_again_with_every_epoch_is_why() -> None:
    restarts = 1e-3 * (1.05 - INSIDE)
    assert not is_told(3.0 - 0.8 * INSIDE, restarts)
    assert not is_told(3.0 - 0.8 * INSIDE, np.full(600, np.nan))
