"""A validation loss that rises while the training loss falls."""

import numpy as np
import pytest

from sonde.spikes.parting import PARTING, Series, parting

DICE = np.random.default_rng(4)
STEPS = np.arange(1.0, 2001)
TRAINING = Series(STEPS, 3 - 0.001 * STEPS + DICE.normal(0, 0.05, 2000))
EVALUATIONS = np.arange(100.0, 2001, 100)


def validation(*values: float) -> Series:
    """Evaluations that end with these values, after a fall to 2.0."""
    falling = np.linspace(3.0, 2.0, len(EVALUATIONS) - len(values))
    return Series(EVALUATIONS, np.r_[falling, values])


def test_losses_that_part_are_told_with_where_it_began() -> None:
    found = parting(TRAINING, validation(2.05, 2.1, 2.15, 2.2))
    assert found is not None
    assert found.kind == PARTING
    assert found.step == 2000
    assert "step 1600" in found.sentence


@pytest.mark.parametrize(
    "values",
    [
        pytest.param((1.99, 1.98, 1.97, 1.96), id="falls"),
        pytest.param((2.1, 2.2, 2.1, 2.2), id="goes up and down"),
        pytest.param((2.002, 2.004, 2.006, 2.008), id="rises by nothing"),
        pytest.param((2.1, 2.2, 2.3), id="rises for a short time"),
    ],
)
def test_other_ends_are_not_told(values: tuple[float, ...]) -> None:
    assert parting(TRAINING, validation(*values)) is None


def test_a_training_loss_that_rises_too_is_another_matter() -> None:
    rising = Series(STEPS, 2 + 0.0005 * STEPS)
    assert parting(rising, validation(2.05, 2.1, 2.15, 2.2)) is None
