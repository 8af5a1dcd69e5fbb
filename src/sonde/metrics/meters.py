"""The meters that are fed values: average, sum, maximum, minimum. Sums are float64, added in the order of the calls.

Each takes numbers or one-element tensors, and leaves NaN and infinities out of its `value` but counts them (`nonfinite`). A tensor on a
device waits, unread, until the meter is; only when 1,024 of one key wait are they read, together. A tensor of the CPU is read at once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, final

from typing_extensions import override

from sonde.metrics.meter import LOCK, NumberMeter, Scalar, scalar_of, storable

MOST_WAITING: Final = 1024
"""How many values may wait on a device for one meter."""


class StreamMeter(NumberMeter, ABC):
    """A meter that is fed one value with a weight at a time."""

    __slots__ = ("_nonfinite", "_waiting")

    _nonfinite: int
    _waiting: list[tuple[Scalar, Scalar]]

    @abstractmethod
    def take(self, value: float, weight: float) -> None:
        """Count one value, finite or not; LOCK is held."""

    def update(self, value: object, weight: object = 1) -> None:
        """Take one number or one-element tensor; None is nothing."""
        if value is not None:
            self.absorb(scalar_of(value, "value"), scalar_of(weight, "weight"))

    def absorb(self, value: Scalar, weight: Scalar) -> None:
        """Take what `scalar_of` has made."""
        with LOCK:
            if type(value) is float and type(weight) is float:
                self.take(value, weight)
                return
            self._waiting.append((value, weight))
            if len(self._waiting) >= MOST_WAITING:
                self.settle()

    def settle(self) -> None:
        """Read what waits on a device, and wait for it."""
        if not self._waiting:
            return
        from sonde.metrics import tensors

        with LOCK:
            waiting, self._waiting = self._waiting, []
            for value, weight in tensors.read_pairs(waiting):
                self.take(value, weight)

    @override
    def reset(self) -> None:
        with LOCK:
            self._nonfinite = 0
            self._waiting = []

    @property
    @override
    def nonfinite(self) -> int:
        self.settle()
        return self._nonfinite

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"nonfinite": self.nonfinite}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with LOCK:
            self.reset()
            self.merge(state)

    @override
    def merge(self, state: Mapping[str, Any]) -> None:
        self.settle()
        self._nonfinite += int(state["nonfinite"])


class SumMeter(StreamMeter, ABC):
    """Sum of value times weight, sum of weights, and the latest value: what average, sum and rate are made of."""

    __slots__ = ("_count", "_sum", "_val")

    @override
    def reset(self) -> None:
        with LOCK:
            super().reset()
            self._sum = 0.0
            self._count: float = 0
            self._val: Scalar | None = None

    @override
    def absorb(self, value: Scalar, weight: Scalar) -> None:
        self._val = value
        super().absorb(value, weight)

    @override
    def take(self, value: float, weight: float) -> None:
        product = value * weight
        if product - product == 0.0:  # neither NaN nor infinite
            self._sum += product
            self._count += weight
        else:
            self._nonfinite += 1

    @property
    @override
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
        """The last value that was logged, finite or not; None without data."""
        return None if self._val is None else float(self._val)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"sum": storable(self.sum), "count": self.count, "val": storable(self.val), **super().state_dict()}

    @override
    def merge(self, state: Mapping[str, Any]) -> None:
        super().merge(state)
        if "total" in state:  # written before version 0.2: sums as several floats
            state = {"sum": math.fsum(state["total"]), "count": math.fsum(state["weight"]), "val": state["latest"]}
        self._sum += float(state["sum"])
        self._count += state["count"]
        if state["val"] is not None:
            self._val = float(state["val"])


@final
class Average(SumMeter):
    """Weighted mean of the finite values; while all weights are 0, the latest value."""

    __slots__ = ()

    kind = "average"

    @property
    @override
    def value(self) -> float:
        self.settle()
        total, count = self._sum, self._count
        if count:
            return total / count
        return math.nan if self.val is None else self.val


@final
class Sum(SumMeter):
    """Sum of the finite values, each times its weight."""

    __slots__ = ()

    kind = "sum"

    @property
    @override
    def value(self) -> float:
        return self.sum if self.has_data else math.nan


class ExtremeMeter(StreamMeter, ABC):
    """The smallest and the largest finite value; infinities stand in where there was none."""

    __slots__ = ("_high", "_low")

    @override
    def reset(self) -> None:
        with LOCK:
            super().reset()
            self._low, self._high = math.inf, -math.inf

    @override
    def take(self, value: float, weight: float) -> None:
        if math.isfinite(value):
            self._low, self._high = min(self._low, value), max(self._high, value)
        else:
            self._nonfinite += 1

    @property
    @override
    def has_data(self) -> bool:
        return self.nonfinite > 0 or self._low <= self._high

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "low": storable(self._low), "high": storable(self._high)}

    @override
    def merge(self, state: Mapping[str, Any]) -> None:
        super().merge(state)
        self._low, self._high = min(self._low, float(state["low"])), max(self._high, float(state["high"]))


@final
class Maximum(ExtremeMeter):
    """The largest finite value."""

    __slots__ = ()

    kind = "maximum"

    @property
    @override
    def value(self) -> float:
        self.settle()
        return self._high if self._low <= self._high else math.nan


@final
class Minimum(ExtremeMeter):
    """The smallest finite value."""

    __slots__ = ()

    kind = "minimum"

    @property
    @override
    def value(self) -> float:
        self.settle()
        return self._low if self._low <= self._high else math.nan
