"""`Quantile`: a quantile of a stream in bounded memory.

Values are counted in buckets, 64 per power of two. A quantile is read as the middle of its bucket, so its error is at
most 1/128 of the value (0.8 %). Magnitudes below 2**-40 count as zero, and those from 2**40 on share the last bucket.
The minimum and the maximum are exact, and every result lies between them.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from sonde.errors import SettingError
from sonde.metrics.meter import LOCK
from sonde.metrics.meters import ExtremeMeter

_PER_DOUBLING: Final = 64
_LOWEST_EXPONENT: Final = -40
_PER_SIGN: Final = 80 * _PER_DOUBLING
"""Bucket numbers run from -_PER_SIGN to _PER_SIGN."""


def bucket_of(value: float) -> int:
    """Return the bucket number of a finite value; numbers are ordered like the values."""
    mantissa, exponent = math.frexp(abs(value))  # the mantissa is at least 0.5
    doublings = exponent - 1 - _LOWEST_EXPONENT
    place = 1 + doublings * _PER_DOUBLING + int((2 * mantissa - 1) * _PER_DOUBLING)
    place = 0 if doublings < 0 or not value else min(place, _PER_SIGN)
    return -place if value < 0 else place


def middle_of(bucket: int) -> float:
    """Return the value that represents a bucket."""
    if bucket == 0:
        return 0.0
    doublings, part = divmod(abs(bucket) - 1, _PER_DOUBLING)
    return math.copysign(math.ldexp(1 + (part + 0.5) / _PER_DOUBLING, doublings + _LOWEST_EXPONENT), bucket)


class Quantile(ExtremeMeter):
    """A quantile of the finite values; the median by default."""

    kind = "quantile"

    def __init__(self, q: float = 0.5, round: int | None = None) -> None:  # noqa: A002  fairseq's name for it
        super().__init__(round)
        if not 0.0 <= q <= 1.0:
            raise SettingError(f"a quantile lies between 0 and 1, but q is {q!r}", hint="for P95 pass 0.95")
        self.q = float(q)

    def reset(self) -> None:
        with LOCK:
            super().reset()
            self._counts: Counter[int] = Counter()

    def take(self, value: float, weight: float) -> None:
        super().take(value, weight)
        if math.isfinite(value):
            self._counts[bucket_of(value)] += 1

    @property
    def value(self) -> float:
        return self.at(self.q)

    def at(self, q: float) -> float:
        """Return another quantile of the same stream; NaN if no value was finite."""
        self.settle()
        with LOCK:
            rank = max(1, math.ceil(q * self._counts.total()))
            for bucket in sorted(self._counts):
                rank -= self._counts[bucket]
                if rank <= 0:
                    return min(max(middle_of(bucket), self._low), self._high)
        return math.nan

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "q": self.q,
            "buckets": sorted([bucket, count] for bucket, count in self._counts.items()),
        }

    def merge(self, state: Mapping[str, Any]) -> None:
        super().merge(state)
        self.q = float(state["q"])
        self._counts.update({int(bucket): int(count) for bucket, count in state["buckets"]})
