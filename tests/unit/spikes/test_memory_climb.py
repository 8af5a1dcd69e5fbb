"""Memory that climbs is told; memory that comes to rest, breathes or is small is not."""

import numpy as np
import pytest

from sonde.spikes.memory_climb import MemorySeries, memory_climbs

GB = 1 << 30


def climb(last: float, *, first: float = 1.0, steps: int = 2000) -> list[tuple[int, int]]:
    """Samples of a memory that grows evenly, in gigabytes."""
    amounts = np.linspace(first, last, 60)
    numbers = np.linspace(1, steps, 60)
    return [(int(step), int(GB * amount)) for step, amount in zip(numbers, amounts, strict=True)]


def test_memory_that_climbs_is_told() -> None:
    assert memory_climbs(climb(3.5)) is not None


@pytest.mark.parametrize(
    "samples",
    [
        climb(1.9),  # not doubled
        climb(0.5, first=0.1),  # small
        climb(3.5, steps=400),  # a beginning
        [*climb(3.5), *((3000 + place, int(3.5 * GB)) for place in range(60))],  # at rest
        [(50 * place, GB + 3 * GB * (place % 2)) for place in range(60)],  # it breathes
        climb(3.5)[::10],  # too few samples
    ],
)
def test_memory_of_a_training_that_is_fine_is_not_told(samples: list[tuple[int, int]]) -> None:
    assert memory_climbs(samples) is None


def test_a_long_run_keeps_few_samples_of_all_its_time() -> None:
    series = MemorySeries()
    for step in range(10_000):
        series.add(step, GB + step)
    assert len(series.samples) < 256
    assert series.samples[0][0] == 0
    assert series.samples[-1][0] > 9800
    steps = np.diff([step for step, _ in series.samples])
    assert steps.min() == steps.max()
