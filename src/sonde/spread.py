"""`Spread`: what is usual for a number, from many values of it, and how far another value is from that.

The median and the middle half are used, so a few wild values change nothing. Pure, no torch.
"""

import math
from collections.abc import Sequence
from typing import final


@final
class Spread:
    """Many values of one number; those that are not finite are left out."""

    def __init__(self, values: Sequence[float]) -> None:
        self._sorted = sorted(value for value in values if math.isfinite(value))

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def median(self) -> float:
        """The middle one; NaN without any."""
        return self._sorted[len(self._sorted) // 2] if self._sorted else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation, as the middle half tells it; never taken for nothing."""
        if not self._sorted:
            return math.nan
        quarter = len(self._sorted) // 4
        deviation = (self._sorted[-1 - quarter] - self._sorted[quarter]) / 1.349
        return max(deviation, 0.01 * abs(self.median), 1e-9)

    def z(self, value: float) -> float:
        """How many deviations above the median; NaN when either is not known."""
        if not self._sorted or not math.isfinite(value):
            return math.nan
        return (value - self.median) / self.deviation
