"""What the losses of a run did around one step: do they rise, do they stay high, has it learnt at all? Pure, over the records."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from sonde.records.steps import StepRecord
from sonde.spread import Spread

_RECENT: Final = 8
"""Steps up to the one in question that say where the loss is,"""
_WINDOW: Final = 16
"""and steps that one earlier level is taken from,"""
_BEFORE: Final = 400
"""among so many."""
_AFTER: Final = 8


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """Losses around a step."""

    recent: float
    """The median of the last few steps, this one included; NaN without."""
    lowest: float
    """The lowest level before them; NaN without,"""
    lowest_step: int
    """and where it was."""
    deviation: float
    """What losses varied by there."""
    later: tuple[float, ...]
    """The few steps after this one."""
    num_high: int
    """Steps in a row up to this one that lie above the lowest level by more than losses vary."""

    @property
    def rise(self) -> float:
        """How far the recent level is above the lowest, in deviations of the losses there."""
        return (self.recent - self.lowest) / self.deviation if self.deviation > 0 else math.nan

    @property
    def stays_high(self) -> bool:
        """Are most steps after this one as high?"""
        limit = self.lowest + 3 * self.deviation
        return bool(self.later) and sum(not one < limit for one in self.later) >= 0.6 * len(self.later)


def trend_of(steps: Mapping[int, StepRecord], step: int) -> Trend:
    """The trend around a step."""
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
    """The middle one; what is not finite counts as infinite."""
    known = sorted(loss if math.isfinite(loss) else math.inf for loss in losses)
    return known[len(known) // 2] if known else math.nan
