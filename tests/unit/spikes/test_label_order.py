"""Data that are sorted by class are told; classes that are mixed or rare are not."""

from collections.abc import Iterable

import numpy as np

from sonde.spikes.label_order import LabelOrder

DICE = np.random.default_rng(5)


def told_at(labels: Iterable[int], batch: int = 16) -> int | None:
    """Return the step at which the order of labels is told; None if it never is."""
    drawn = np.fromiter(labels, dtype=np.int64)
    watch = LabelOrder()
    for step, start in enumerate(range(0, len(drawn) - batch + 1, batch), 1):
        rows = drawn[start : start + batch]
        if not watch.is_over and watch.observe(step, rows.min(), rows.max(), len(rows)):
            return step
    return None


def test_sorted_classes_are_told_soon_after_the_second_class_comes() -> None:
    labels = np.repeat(np.arange(4), 240)
    assert told_at(np.tile(labels, 2)) == 21


def test_mixed_classes_are_not_told() -> None:
    assert told_at(DICE.integers(0, 4, 8000)) is None


def test_a_rare_second_class_is_not_told() -> None:
    assert told_at((DICE.random(8000) < 0.02).astype(int)) is None


def test_batches_of_one_row_are_not_told() -> None:
    assert told_at(np.repeat(np.arange(4), 240), batch=1) is None


def test_one_class_alone_is_not_told() -> None:
    assert told_at(np.zeros(8000, dtype=int)) is None
