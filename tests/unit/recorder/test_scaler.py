"""Updates that a gradient scaler skips: when there are so many that it is told."""

from collections.abc import Sequence

import pytest
import torch

from sonde.recorder.scaler import ScalerWatch
from sonde.recorder.update import Update


def told(skips: Sequence[bool]) -> list[tuple[int, str]]:
    """Return what is told of updates that were skipped or not, with the step."""
    found: list[tuple[int, str]] = []
    watch = ScalerWatch()
    watch.watch([torch.amp.GradScaler("cpu")])
    for step, is_skipped in enumerate(skips, 1):
        if is_skipped:
            watch.note_skip(
                Update(step, had_gradients=False),
                lambda update, how_many: found.append((update.step, how_many)),
            )
        else:
            watch.note_made()
    return found


def test_a_long_series_is_told_once() -> None:
    assert told([True] * 60) == [(25, "25 updates in a row")]


def test_a_scale_that_goes_up_again_and_again_is_told() -> None:
    six_of_seven = ([False] + [True] * 6) * 10
    assert told(six_of_seven) == [(24, "20 of the last 24 updates")]


@pytest.mark.parametrize(
    "skips",
    [
        [True] * 20 + [False] * 80,  # a scale of 2**36 comes down
        ([False] * 9 + [True]) * 20,  # one in ten, as the scale grows now and then
        [False] * 100,
    ],
)
def test_a_few_skips_are_nothing(skips: list[bool]) -> None:
    assert not told(skips)
