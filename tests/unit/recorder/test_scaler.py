"""Updates that a gradient scaler skips: when there are so many that it is told."""

from collections.abc import Sequence

import pytest
import torch

from sonde.recorder.scaler import ScalerWatch


def told(skips: Sequence[bool], *, has_scaler: bool = True) -> list[tuple[str, int, str]]:
    """Return what is told of updates that were skipped or not: its kind, the step and the words."""
    found: list[tuple[str, int, str]] = []
    watch = ScalerWatch()
    watch.watch([torch.amp.GradScaler("cpu")] if has_scaler else [])
    for step, is_skipped in enumerate(skips, 1):
        if is_skipped:
            finding = watch.note_skip(step)
            if finding is not None:
                found.append((finding.kind, finding.step, finding.sentence))
        else:
            watch.note_made()
    return found


def test_a_long_series_is_told_once() -> None:
    ((kind, step, sentence),) = told([True] * 60)
    assert (kind, step) == ("scaler_skips", 25)
    assert "25 updates in a row" in sentence


def test_a_scale_that_goes_up_again_and_again_is_told() -> None:
    six_of_seven = ([False] + [True] * 6) * 10
    ((kind, step, sentence),) = told(six_of_seven)
    assert (kind, step) == ("scaler_skips", 24)
    assert "20 of the last 24 updates" in sentence


def test_without_a_scaler_nobody_speaks_of_one() -> None:
    ((kind, step, sentence),) = told([True] * 60, has_scaler=False)
    assert (kind, step) == ("no_optimizer_step", 25)
    assert "scaler" not in sentence


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
