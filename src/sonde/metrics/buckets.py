"""`Buckets`: a histogram of a stream from which any quantile can be read, in bounded memory.

A bucket holds the floats that share their sign, their exponent and the first six bits of their mantissa: it is read off the
bits of the number, so Python, a tensor on any device and every rank agree on it. A quantile is read as the middle of its
bucket and is off by at most 1/128 of its size (0.8 %). Sizes below 2**-40 count as zero, sizes from 2**40 share the last
bucket; the smallest and the largest value are kept exactly and every answer stays between them.

Costs: 10,241 buckets at most; in Python only those in use, as one dict entry each.
"""

import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from sonde.metrics.parts import Parts
from sonde.metrics.tally import Entry, Extremes, Tally

DROPPED_BITS: Final = 52 - 6
"""Low mantissa bits of a float64 that a bucket does not look at."""

FIRST: Final = (1023 - 40) << 6
"""The kept bits of 2**-40, where buckets begin."""

PER_SIGN: Final = 80 << 6
"""Buckets of one sign: 64 for each power of two from 2**-40 to 2**40. Bucket numbers run from -PER_SIGN to PER_SIGN."""

_MAGNITUDE: Final = (1 << 63) - 1


def bucket_of(value: float) -> int:
    """The number of the bucket of a finite value; numbers are ordered like the values."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    place = ((bits & _MAGNITUDE) >> DROPPED_BITS) - FIRST + 1
    place = min(max(place, 0), PER_SIGN)
    return -place if bits < 0 else place


def middle_of(bucket: int) -> float:
    """The value that stands for a bucket."""
    if bucket == 0:
        return 0.0
    first_bits = (abs(bucket) - 1 + FIRST) << DROPPED_BITS
    low, high = struct.unpack("<2d", struct.pack("<2q", first_bits, first_bits + (1 << DROPPED_BITS)))
    return math.copysign((low + high) / 2, bucket)


@final
class Buckets(Tally):
    """Counts per bucket, and the exact extremes."""

    __slots__ = ("counts", "extremes")

    device_form = "buckets"

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[int] = Counter()
        self.extremes = Extremes()

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> "Buckets":
        """The tally of one batch; weights do not matter."""
        tally = cls()
        tally.extremes = Extremes.of(entries)
        tally.nonfinite = tally.extremes.nonfinite
        tally.counts.update(bucket_of(value) for value, _, _ in entries if math.isfinite(value))
        return tally

    @property
    def has_data(self) -> bool:
        """Whether anything was counted, finite or not."""
        return bool(self.counts) or self.nonfinite > 0

    def quantile(self, q: float) -> float:
        """The value below or at which a share `q` of the finite ones lies; NaN when there are none."""
        rank = max(1, math.ceil(q * self.counts.total()))
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                return min(max(middle_of(bucket), self.extremes.low), self.extremes.high)
        return math.nan

    def merge(self, other: "Buckets") -> None:
        """Add another tally."""
        self.counts.update(other.counts)
        self.extremes.merge(other.extremes)
        self.nonfinite += other.nonfinite

    def parts(self) -> Parts:
        """The count of the non-finite, then every bucket; the smallest with its sign turned, and the largest."""
        counts = [self.counts.get(bucket, 0) for bucket in range(-PER_SIGN, PER_SIGN + 1)]
        return Parts(added=[self.nonfinite, *counts], highest=self.extremes.parts().highest)

    def add_parts(self, parts: Parts, tick: int | None = None) -> None:  # noqa: ARG002  (nothing here is the latest)
        """Add the flat form of others."""
        self.nonfinite += parts.added[0]
        for place, count in enumerate(parts.added[1:]):
            if count:
                self.counts[place - PER_SIGN] += count
        self.extremes.add_parts(Parts(added=parts.added[:1], highest=parts.highest))

    def state_dict(self) -> dict[str, Any]:
        """The buckets in use as [number, count], both ends and the count of the non-finite."""
        return {
            **self.extremes.state_dict(),
            "buckets": [[bucket, self.counts[bucket]] for bucket in sorted(self.counts)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` described."""
        self.extremes.load_state_dict(state)
        self.nonfinite = self.extremes.nonfinite
        self.counts = Counter({int(bucket): int(count) for bucket, count in state["buckets"]})
