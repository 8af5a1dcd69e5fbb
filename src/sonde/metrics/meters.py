"""The meters that are fed values: average, sum, maximum, minimum, quantile.

Each takes numbers or one-element tensors, leaves NaN and infinities out of its `value` but counts them (`nonfinite`), and is exact
in its sums: each product of value and weight is rounded as floats are, their sums are not, and the average is rounded once.
"""

import math
from collections.abc import Mapping
from typing import Any, final

from sonde.errors import SettingError
from sonde.metrics import exact
from sonde.metrics.buckets import Buckets
from sonde.metrics.meter import ANY_PRIORITY, StreamMeter
from sonde.metrics.tally import Extremes, WeightedSum


@final
class Average(StreamMeter[WeightedSum]):
    """Weighted mean of the finite values; while all weights are 0, the latest value."""

    __slots__ = ()

    kind = "average"
    tally_type = WeightedSum

    def __init__(self, *, priority: int = 10, round: int | None = None) -> None:  # noqa: A002
        super().__init__(priority=priority, round=round)

    @property
    def value(self) -> float:
        """The mean; the latest value when nothing finite has weight; NaN without data."""
        tally = self.settled()
        if tally.weight:
            return exact.ratio(tally.total, tally.weight)
        return math.nan if tally.latest is None else tally.latest

    @property
    def total(self) -> float:
        """Sum of value times weight."""
        return exact.nearest_float(self.settled().total)

    @property
    def weight(self) -> float:
        """Sum of the weights of the finite values."""
        return exact.nearest_float(self.settled().weight)

    @property
    def latest(self) -> float:
        """The last value that was logged, finite or not; NaN without data."""
        latest = self.settled().latest
        return math.nan if latest is None else latest


@final
class Sum(StreamMeter[WeightedSum]):
    """Sum of the finite values, each times its weight."""

    __slots__ = ()

    kind = "sum"
    tally_type = WeightedSum

    @property
    def value(self) -> float:
        """The sum; NaN without data."""
        tally = self.settled()
        return exact.nearest_float(tally.total) if tally.has_data else math.nan


@final
class Maximum(StreamMeter[Extremes]):
    """The largest finite value."""

    __slots__ = ()

    kind = "maximum"
    tally_type = Extremes

    @property
    def value(self) -> float:
        """The largest; NaN when no value was finite."""
        tally = self.settled()
        return tally.high if tally.has_finite else math.nan


@final
class Minimum(StreamMeter[Extremes]):
    """The smallest finite value."""

    __slots__ = ()

    kind = "minimum"
    tally_type = Extremes

    @property
    def value(self) -> float:
        """The smallest; NaN when no value was finite."""
        tally = self.settled()
        return tally.low if tally.has_finite else math.nan


@final
class Quantile(StreamMeter[Buckets]):
    """A quantile of the finite values, P50 unless told otherwise, to within 0.8 % of its size and in bounded memory."""

    __slots__ = ("q",)

    kind = "quantile"
    tally_type = Buckets

    def __init__(self, q: float = 0.5, *, priority: int = ANY_PRIORITY, round: int | None = None) -> None:  # noqa: A002
        super().__init__(priority=priority, round=round)
        if not 0.0 <= q <= 1.0:
            raise SettingError(f"a quantile lies between 0 and 1, but q is {q!r}", hint="for P95 pass 0.95")
        self.q = float(q)

    @property
    def value(self) -> float:
        """The quantile; NaN when no value was finite."""
        return self.at(self.q)

    def at(self, q: float) -> float:
        """Any other quantile of the same stream."""
        return self.settled().quantile(q)

    def fresh(self) -> "Quantile":
        """An empty meter with the same settings."""
        return Quantile(self.q, priority=self.priority, round=self.round)

    def state_dict(self) -> dict[str, Any]:
        """The tally as plain data, and which quantile it is read at."""
        return {"q": self.q, **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the meter that `state_dict` described."""
        super().load_state_dict(state)
        self.q = float(state["q"])
