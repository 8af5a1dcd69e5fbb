"""`Spread`: the usual range of a number, estimated from many values, and how far another value is
from it.

Uses the median and the middle half, so a few outliers change nothing. Pure, no torch.
"""

import math
from collections.abc import Sequence


class Spread:
    """A robust summary of many values of one number; non-finite values are left out."""

    def __init__(self, values: Sequence[float]) -> None:
        self._sorted = sorted(value for value in values if math.isfinite(value))

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def median(self) -> float:
        """The median; NaN if there are no values."""
        return self._sorted[len(self._sorted) // 2] if self._sorted else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation estimated from the middle half; never zero."""
        if not self._sorted:
            return math.nan
        quarter = len(self._sorted) // 4
        deviation = (self._sorted[-1 - quarter] - self._sorted[quarter]) / 1.349
        return max(deviation, 0.01 * abs(self.median), 1e-9)

    def z(self, value: float) -> float:
        """Return how many deviations `value` is above the median; NaN if unknown."""
        if not self._sorted or not math.isfinite(value):
            return math.nan
        return (value - self.median) / self.deviation
