"""The meters that take values: average, sum, maximum, minimum, quantile. Sums are float64, added in
call order.

Each accepts numbers or one-element tensors. NaN and infinities are left out of `value` but counted
in `nonfinite`. Device tensors stay unread until the meter is read; when 1,024 of one key are
pending, they are read together. CPU tensors are read immediately.

Two meters use a clock: `Rate` (count per second) and `Stopwatch` (duration). Neither counts the
time between a save and a load. Over ranks, counts are added, and a rate is divided by the longest
time of any rank, because ranks run in parallel.

`Quantile` uses bounded memory: values are counted in buckets, 64 per power of two. A quantile is
read as the middle of its bucket, so its error is at most 1/128 of the value (0.8 %). Magnitudes
below 2**-40 count as zero, and those from 2**40 on share the last bucket. The minimum and the
maximum are exact, and every result lies between them.
"""

import math
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from sonde.errors import SettingError
from sonde.metrics.meter import LOCK, NumberMeter, Scalar, scalar_of, storable

MOST_WAITING: Final = 1024
"""Maximum number of unread device values per meter."""

_PER_DOUBLING: Final = 64
_LOWEST_EXPONENT: Final = -40
_PER_SIGN: Final = 80 * _PER_DOUBLING
"""Bucket numbers run from -_PER_SIGN to _PER_SIGN."""


class StreamMeter(NumberMeter, ABC):
    """A meter that takes one weighted value at a time."""

    _nonfinite: int
    _waiting: list[tuple[Scalar, Scalar]]

    @abstractmethod
    def take(self, value: float, weight: float) -> None:
        """Count one value, finite or not. The caller holds LOCK."""

    def update(self, value: object, weight: object = 1) -> None:
        """Add a number or one-element tensor; None is ignored."""
        if value is not None:
            self.absorb(scalar_of(value, "value"), scalar_of(weight, "weight"))

    def absorb(self, value: Scalar, weight: Scalar) -> None:
        """Add a value and weight returned by `scalar_of`."""
        with LOCK:
            if type(value) is float and type(weight) is float:
                self.take(value, weight)
                return
            self._waiting.append((value, weight))
            if len(self._waiting) >= MOST_WAITING:
                self.settle()

    def settle(self) -> None:
        """Read all pending device values, waiting for the device."""
        if not self._waiting:
            return
        with LOCK:
            waiting = self._waiting
            self._waiting = []
            for value, weight in _read_pairs(waiting):
                self.take(value, weight)

    def reset(self) -> None:
        with LOCK:
            self._nonfinite = 0
            self._waiting = []
            self._clear()

    @abstractmethod
    def _clear(self) -> None:
        """Discard what was counted. The caller holds LOCK."""

    @property
    def nonfinite(self) -> int:
        self.settle()
        return self._nonfinite

    def state_dict(self) -> dict[str, Any]:
        return {"nonfinite": self.nonfinite}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with LOCK:
            self.reset()
            self.merge(state)

    def merge(self, state: Mapping[str, Any]) -> None:
        self.settle()
        self._nonfinite += int(state["nonfinite"])


class WeightedMeter(StreamMeter, ABC):
    """Sum of value times weight, sum of weights, and the latest value: the base of average, sum and
    rate.
    """

    def _clear(self) -> None:
        self._sum = 0.0
        self._count: float = 0
        self._val: Scalar | None = None

    def absorb(self, value: Scalar, weight: Scalar) -> None:
        self._val = value
        super().absorb(value, weight)

    def take(self, value: float, weight: float) -> None:
        product = value * weight
        if product - product == 0.0:  # neither NaN nor infinite
            self._sum += product
            self._count += weight
        else:
            self._nonfinite += 1

    @property
    def has_data(self) -> bool:
        return self._val is not None

    @property
    def sum(self) -> float:
        """Sum of value times weight."""
        self.settle()
        return self._sum

    @property
    def count(self) -> float:
        """Sum of the weights of the finite values."""
        self.settle()
        return self._count

    @property
    def val(self) -> float | None:
        """The latest value, finite or not; None without data."""
        return None if self._val is None else float(self._val)

    def state_dict(self) -> dict[str, Any]:
        return {
            "sum": storable(self.sum),
            "count": self.count,
            "val": storable(self.val),
            **super().state_dict(),
        }

    def merge(self, state: Mapping[str, Any]) -> None:
        super().merge(state)
        if "total" in state:  # written before version 0.2, when sums were several floats
            state = {
                "sum": math.fsum(state["total"]),
                "count": math.fsum(state["weight"]),
                "val": state["latest"],
            }
        self._sum += float(state["sum"])
        self._count += state["count"]
        if state["val"] is not None:
            self._val = float(state["val"])


class Average(WeightedMeter):
    """Weighted mean of the finite values; the latest value while all weights are 0.

    ```python
    from sonde import metrics

    meter = metrics.Average(round=2)
    meter.update(2.0, 100)
    meter.update(4.0, 300)
    assert meter.value == 3.5
    ```
    """

    kind = "average"

    @property
    def value(self) -> float:
        self.settle()
        total = self._sum
        count = self._count
        if count:
            return total / count
        return math.nan if self.val is None else self.val


class Sum(WeightedMeter):
    """Sum of the finite values, each times its weight.

    ```python
    from sonde import metrics

    meter = metrics.Sum()
    meter.update(2.0)
    meter.update(4.0)
    assert meter.value == 6.0
    ```
    """

    kind = "sum"

    @property
    def value(self) -> float:
        return self.sum if self.has_data else math.nan


class ExtremeMeter(StreamMeter, ABC):
    """The smallest and the largest finite value; infinities as long as there are none."""

    def _clear(self) -> None:
        self._low = math.inf
        self._high = -math.inf

    def take(self, value: float, weight: float) -> None:
        if math.isfinite(value):
            self._low = min(self._low, value)
            self._high = max(self._high, value)
        else:
            self._nonfinite += 1

    @property
    def has_data(self) -> bool:
        return self.nonfinite > 0 or self._low <= self._high

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "low": storable(self._low), "high": storable(self._high)}

    def merge(self, state: Mapping[str, Any]) -> None:
        super().merge(state)
        self._low = min(self._low, float(state["low"]))
        self._high = max(self._high, float(state["high"]))


class Maximum(ExtremeMeter):
    """The largest finite value.

    ```python
    from sonde import metrics

    meter = metrics.Maximum()
    meter.update(2.0)
    meter.update(4.0)
    assert meter.value == 4.0
    ```
    """

    kind = "maximum"

    @property
    def value(self) -> float:
        self.settle()
        return self._high if self._low <= self._high else math.nan


class Minimum(ExtremeMeter):
    """The smallest finite value.

    ```python
    from sonde import metrics

    meter = metrics.Minimum()
    meter.update(2.0)
    meter.update(4.0)
    assert meter.value == 2.0
    ```
    """

    kind = "minimum"

    @property
    def value(self) -> float:
        self.settle()
        return self._low if self._low <= self._high else math.nan


def bucket_of(value: float) -> int:
    """Return the bucket number of a finite value; numbers are ordered like the values."""
    mantissa, exponent = math.frexp(abs(value))  # the mantissa is at least 0.5
    doublings = exponent - 1 - _LOWEST_EXPONENT
    if doublings < 0 or not value:
        return 0
    place = 1 + doublings * _PER_DOUBLING + int((2 * mantissa - 1) * _PER_DOUBLING)
    place = min(place, _PER_SIGN)
    return -place if value < 0 else place


def middle_of(bucket: int) -> float:
    """Return the value that represents a bucket."""
    if bucket == 0:
        return 0.0
    doublings, part = divmod(abs(bucket) - 1, _PER_DOUBLING)
    return math.copysign(
        math.ldexp(1 + (part + 0.5) / _PER_DOUBLING, doublings + _LOWEST_EXPONENT), bucket
    )


class Quantile(ExtremeMeter):
    """A quantile of the finite values; the median by default.

    ```python
    from sonde import metrics

    meter = metrics.Quantile(0.9)
    for value in range(1, 101):
        meter.update(value)
    assert 89 <= meter.value <= 92
    ```
    """

    kind = "quantile"

    # fairseq's name for it
    def __init__(self, q: float = 0.5, round: int | None = None) -> None:  # noqa: A002
        super().__init__(round)
        if not 0.0 <= q <= 1.0:
            raise SettingError(
                f"a quantile lies between 0 and 1, but q is {q!r}", hint="for P95 pass 0.95"
            )
        self.q = float(q)

    def _clear(self) -> None:
        super()._clear()
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
            num_left = max(1, math.ceil(q * self._counts.total()))
            for bucket in sorted(self._counts):
                num_left -= self._counts[bucket]
                if num_left <= 0:
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


def _read_pairs(pairs: Sequence[tuple[Scalar, Scalar]]) -> list[tuple[float, float]]:
    """Return values and weights as numbers, read in one transfer."""
    tensors = [scalar for pair in pairs for scalar in pair if type(scalar) is not float]
    together = sys.modules["torch"].stack([tensor.to(tensors[0].device) for tensor in tensors])
    numbers = iter(together.tolist())
    read = []
    for value, weight in pairs:
        read_value = value if type(value) is float else next(numbers)
        read_weight = weight if type(weight) is float else next(numbers)
        read.append((read_value, read_weight))
    return read


# The running laps, per thread and asyncio task, so that two of them can time the same thing at
# once. A key is the lap token of a stopwatch; the mapping is replaced, never changed, because
# contexts share it.
_running: ContextVar[Mapping[object, float]] = ContextVar("sonde_running_laps", default={})  # noqa: B039


class Rate(WeightedMeter):
    """Count per second since creation or the last reset."""

    kind = "rate"

    def update(self, value: object = 1, weight: object = 1) -> None:
        super().update(value, weight)

    @property
    def elapsed_time(self) -> float:
        """Seconds on the clock."""
        return self._seconds + (
            0.0 if self._started is None else time.perf_counter() - self._started
        )

    @property
    def value(self) -> float:
        counted = self.sum
        seconds = self.elapsed_time
        return counted / seconds if self.has_data and seconds > 0.0 else math.nan

    def _clear(self) -> None:
        super()._clear()
        self._seconds = 0.0
        self._started: float | None = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seconds": self.elapsed_time}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._started = time.perf_counter()

    def merge(self, state: Mapping[str, Any]) -> None:
        super().merge(state)
        self._seconds = max(self._seconds, float(state["seconds"]))
        self._started = None


class Stopwatch(WeightedMeter):
    """Total seconds between `start` and `stop`; their weighted mean once a lap has a weight."""

    kind = "stopwatch"

    def take(self, value: float, weight: float) -> None:
        if math.isfinite(value) and math.isfinite(weight):
            self._sum += value
            self._count += weight
        else:
            self._nonfinite += 1

    def start(self) -> None:
        """Start a lap for this thread or task."""
        _running.set({**_running.get(), self._lap: time.perf_counter()})

    def stop(self, weight: object = 1, prehook: Callable[[], object] | None = None) -> None:
        """End the lap after calling `prehook`; do nothing if this thread or task has no running
        lap.
        """
        if self._lap not in _running.get():
            return
        if prehook is not None:
            prehook()
        now = time.perf_counter()
        laps = dict(_running.get())
        started = laps.pop(self._lap)
        _running.set(laps)
        self.absorb(now - started, scalar_of(weight, "weight"))

    @property
    def elapsed_time(self) -> float:
        """Seconds of the running lap; 0 if there is none."""
        started = _running.get().get(self._lap)
        return 0.0 if started is None else time.perf_counter() - started

    @property
    def value(self) -> float:
        if count := self.count:
            return self._sum / count
        return self.sum if self.has_data else math.nan

    def _clear(self) -> None:
        super()._clear()
        self._lap = object()  # running laps are discarded
