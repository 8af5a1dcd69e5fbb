"""The first losses after a resume, beside those before it.

If the run had gone past the checkpoint, its steps are made again, and each loss is compared with
the one that the same step had. Otherwise the losses are compared with the last ones before.
"""

import math
import statistics
from collections.abc import Mapping
from typing import Final, NamedTuple

from sonde.recorder.update import Update
from sonde.records.journal import StepRecord
from sonde.spread import Spread

_NUM: Final = 8
"""How many losses are compared."""
_NUM_BEFORE: Final = 32
"""With how many losses from before the resume."""
_FAR: Final = 4.0
"""The losses are higher if their median is this many deviations above."""
_SHARE: Final = 0.1
"""… and higher by at least this fraction."""


class HigherLosses(NamedTuple):
    """What is told when the loss rose at a resume."""

    step: int
    """The first step after it."""
    title: str
    """What happened, as the beginning of a sentence."""
    value: float
    """The median of the losses after it."""
    expected: float
    """The median of the losses that they are compared with."""


class ResumeLosses:
    """Collects the first losses after a resume."""

    def __init__(self, steps: Mapping[int, StepRecord], from_step: int) -> None:
        """`steps` are the updates that were recorded before the restart."""
        self._steps = steps
        self._from_step = from_step
        self._updates: list[Update] = []
        self.is_over = False
        """Whether all losses are there."""

    def add(self, update: Update) -> HigherLosses | None:
        """Add an update; return what is to be told once there are enough."""
        self._updates.append(update)
        if len(self._updates) < _NUM:
            return None
        losses = [made.loss for made in self._updates if made.loss is not None]
        if len(losses) < _NUM and len(self._updates) < 2 * _NUM:
            return None  # on a device, losses arrive late
        self.is_over = True
        return compare_losses(losses, self._steps, self._from_step, self._updates[0].step)


def compare_losses(
    losses: list[float], steps: Mapping[int, StepRecord], from_step: int, first: int
) -> HigherLosses | None:
    """Return what to tell if the first losses after a resume are far higher than before; None if
    they are not, or if too few are known. `steps` are the updates recorded before the restart,
    `from_step` is the step of the checkpoint, and `first` the first step after it.
    """
    before = [
        steps[at].loss for at in range(from_step - _NUM_BEFORE + 1, from_step + 1) if at in steps
    ]
    before = [loss for loss in before if math.isfinite(loss)]
    if len(before) < _NUM or not losses:
        return None
    own = statistics.median(losses)
    again = [steps[at].loss for at in range(from_step + 1, from_step + 1 + _NUM) if at in steps]
    expected = statistics.median(before)
    words = f"the last {len(before)} before had"
    if len(again) == len(losses):
        expected = statistics.median(again)
        words = "the same steps had"
    is_far = not math.isfinite(own) or own - expected > _FAR * Spread(before).deviation
    if not is_far or own - expected <= _SHARE * abs(expected):
        return None
    title = (
        f"the first {len(losses)} losses after the resume at step {from_step:,} have a median of"
        f" {own:.4g}; {words} {expected:.4g}"
    )
    return HigherLosses(first, title, own, expected)
