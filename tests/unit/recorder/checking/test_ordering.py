"""Batches that come again in the same order."""

import pytest

from sonde.recorder.checking.ordering import row_order


@pytest.mark.parametrize(
    ("batches", "num_before_again"),
    [
        ([[1, 2], [3, 4], [1, 2], [3, 4], [1, 2]], 2),
        ([[1, 2], [3, 4], [5, 6], [1, 2], [3, 4], [5, 6]], 3),
        ([[1, 2], [3, 4], [3, 1], [2, 4]], 0),
        ([[1, 2], [1, 2], [1, 2], [1, 2]], 0),
    ],
)
def test_epochs_in_the_same_order_are_counted(
    batches: list[list[int]], num_before_again: int
) -> None:
    assert row_order([], [], batches, []).num_before_again == num_before_again
