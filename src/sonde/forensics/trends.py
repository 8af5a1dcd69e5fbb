"""How the losses of a run behaved around a step: whether they rise, stay high, or were learned at all. Pure functions over records."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from sonde.records.steps import StepRecord
from sonde.spread import Spread

_RECENT: Final = 8
"""The number of steps, up to the one in question, that define the recent level."""
_WINDOW: Final = 16
"""The number of steps that define one earlier level."""
_BEFORE: Final = 400
"""How many steps before the recent ones are searched for the lowest level."""
_AFTER: Final = 8


class Trend(NamedTuple):
    """The losses around a step."""

    recent: float
    """The median loss of the last few steps including this one; NaN if there are none."""
    lowest: float
    """The lowest earlier level; NaN if there is none."""
    lowest_step: int
    """The step at which the lowest level was reached."""
    deviation: float
    """The deviation of the losses at the lowest level."""
    later: tuple[float, ...]
    """The losses of the few steps after this one."""
    num_high: int
    """The number of consecutive steps up to this one that are clearly above the lowest level."""

    @property
    def rise(self) -> float:
        """How far the recent level is above the lowest one, in deviations of the losses there."""
        return (self.recent - self.lowest) / self.deviation if self.deviation > 0 else math.nan

    @property
    def stays_high(self) -> bool:
        """Whether most steps after this one are as high."""
        limit = self.lowest + 3 * self.deviation
        return bool(self.later) and sum(not one < limit for one in self.later) >= 0.6 * len(self.later)


def trend_of(steps: Mapping[int, StepRecord], step: int) -> Trend:
    """Return the trend around a step."""
    numbers = [number for number in steps if number <= step]
    losses = [steps[number].loss for number in numbers]
    recent = _median(losses[-_RECENT:])
    lowest, place, deviation = math.nan, 0, math.nan
    start = max(0, len(losses) - _RECENT - _BEFORE)
    for first in range(start, len(losses) - _RECENT - _WINDOW + 1, _WINDOW // 2):
        spread = Spread(losses[first : first + _WINDOW])
        if len(spread) and not spread.median >= lowest:
            lowest, place, deviation = spread.median, numbers[first + _WINDOW // 2], spread.deviation
    limit = lowest + 3 * deviation
    num_high = next((count for count, loss in enumerate(reversed(losses)) if loss < limit), len(losses))
    return Trend(
        recent=recent,
        lowest=lowest,
        lowest_step=place,
        deviation=deviation,
        later=tuple(steps[number].loss for number in range(step + 1, step + 1 + _AFTER) if number in steps),
        num_high=0 if math.isnan(limit) else num_high,
    )


def _median(losses: list[float]) -> float:
    """Return the median, counting non-finite losses as infinite."""
    known = sorted(loss if math.isfinite(loss) else math.inf for loss in losses)
    return known[len(known) // 2] if known else math.nan
