"""Rows that come again too early are told; epochs and samplers that draw by chance are not."""

from collections.abc import Iterable

import numpy as np
import pytest

from sonde.spikes.rows_again import RowsAgain

DICE = np.random.default_rng(3)


def num_told(rows: Iterable[int]) -> int:
    watch = RowsAgain()
    drawn = [int(row) for row in rows]
    steps = range(0, len(drawn) - 16, 16)
    found = [watch.observe(step, drawn[step : step + 16]) for step in steps]
    return sum(finding is not None for finding in found)


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_workers_that_each_read_all_of_the_data_are_told(num_workers: int) -> None:
    assert num_told(np.repeat(np.arange(5000), num_workers)) > 0


@pytest.mark.parametrize("size", [40, 300, 700, 5000])
def test_epochs_are_not_told(size: int) -> None:
    shuffled = np.concatenate([DICE.permutation(size) for _ in range(6)])
    in_order = np.tile(np.arange(size), 6)
    part_of_a_larger_one = 17 * shuffled
    assert num_told(shuffled) + num_told(in_order) + num_told(part_of_a_larger_one) == 0


@pytest.mark.parametrize("size", [500, 5000, 50_000])
def test_drawing_with_replacement_is_not_told(size: int) -> None:
    assert num_told(DICE.integers(0, size, 20_000)) == 0


def test_drawing_rare_rows_more_often_is_not_told() -> None:
    weights = np.r_[np.full(50, 100.0), np.ones(5000)]
    assert num_told(DICE.choice(5050, 20_000, p=weights / weights.sum())) == 0


def test_of_very_many_rows_nothing_is_held() -> None:
    watch = RowsAgain()
    for step in range(300):
        watch.observe(step, range(512 * step, 512 * step + 512))
    assert watch.is_over
