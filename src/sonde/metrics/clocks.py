"""The meters that watch a clock: `Rate` (how many per second) and `Stopwatch` (how long).

Neither counts the time between a save and a load: a loaded clock goes on from now. Over ranks, what was counted is added; a rate is
divided by the longest time of any rank, because ranks run side by side.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, final

from sonde.metrics import exact
from sonde.metrics.inlet import LOCK, plain_number, tick
from sonde.metrics.meter import Meter, StreamMeter
from sonde.metrics.parts import Parts
from sonde.metrics.tally import WeightedSum

# Which laps run, per thread and asyncio task, so that two of them can time the same thing at once. A key is the lap token of
# a stopwatch; the mapping is replaced, never changed, because contexts share it.
_running: ContextVar[Mapping[object, float]] = ContextVar("sonde_running_laps", default={})  # noqa: B039


@final
class Rate(StreamMeter[WeightedSum]):
    """Things per second. The first update only starts the clock: what it counts happened before."""

    __slots__ = ("_clock", "_seconds", "_started")

    kind = "rate"
    tally_type = WeightedSum

    def __init__(
        self,
        *,
        priority: int = 30,
        round: int | None = None,  # noqa: A002
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(priority=priority, round=round)
        self._clock = clock
        self._seconds = 0.0
        self._started: float | None = None

    def update(self, value: object, weight: object = 1) -> None:
        """Count `value` things (times `weight`)."""
        if self._started is None:
            self._started = self._clock()
        else:
            super().update(value, weight)

    @property
    def seconds(self) -> float:
        """Time on the clock."""
        return self._seconds + (0.0 if self._started is None else self._clock() - self._started)

    @property
    def value(self) -> float:
        """Things per second; NaN without data."""
        tally, seconds = self.settled(), self.seconds
        return exact.nearest_float(tally.total) / seconds if tally.has_data and seconds > 0.0 else math.nan

    def reset(self) -> None:
        """Nothing counted, and the clock starts now."""
        super().reset()
        self._seconds, self._started = 0.0, self._clock()

    def fresh(self) -> "Rate":
        """An empty meter whose clock stands still."""
        return Rate(priority=self.priority, round=self.round, clock=self._clock)

    def parts(self) -> Parts:
        """The flat form, for exchange between ranks."""
        return Parts(added=super().parts().added, highest=[self.seconds], latest=self.settled().latest)

    def add_parts(self, parts: Parts) -> None:
        """Add the count of another rate that ran at the same time."""
        super().add_parts(parts)
        self._seconds = max(self._seconds, parts.highest[0])

    def state_dict(self) -> dict[str, Any]:
        """What was counted and the time it took."""
        return {**super().state_dict(), "seconds": self.seconds, "running": self._started is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the meter that `state_dict` described; its clock goes on from now."""
        super().load_state_dict(state)
        self._seconds = float(state["seconds"])
        self._started = self._clock() if state["running"] else None


@final
class Stopwatch(Meter):
    """Seconds between `start` and `stop`, added up; their mean once a lap was given weight."""

    __slots__ = ("_clock", "_lap", "_tally")

    kind = "stopwatch"

    def __init__(
        self,
        *,
        priority: int = 40,
        round: int | None = None,  # noqa: A002
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(priority=priority, round=round)
        self._clock = clock
        self._tally = WeightedSum()
        self._lap = object()

    def start(self) -> None:
        """Begin a lap, for this thread or task."""
        _running.set({**_running.get(), self._lap: self._clock()})

    def stop(self, weight: object = 0.0) -> None:
        """End the lap; nothing happens when this thread or task has none."""
        laps = dict(_running.get())
        started = laps.pop(self._lap, None)
        if started is not None:
            _running.set(laps)
            self.update(self._clock() - started, weight)

    def update(self, seconds: object, weight: object = 1) -> None:
        """Add a lap that was timed elsewhere."""
        lap = WeightedSum.of([(plain_number(seconds, "time"), 1, tick())])
        share = WeightedSum.of([(plain_number(weight, "weight"), 1, tick())])
        with LOCK:
            if share.nonfinite:
                self._tally.nonfinite += 1
            else:
                self._tally.merge(lap)
                self._tally.weight += share.total - lap.weight

    @property
    def has_data(self) -> bool:
        """Whether a lap was finished."""
        return self._tally.has_data

    @property
    def value(self) -> float:
        """The mean lap when laps have weight, else the total; NaN without data."""
        return self.mean if self._tally.weight else self.total

    @property
    def total(self) -> float:
        """Seconds of all laps; NaN without data."""
        return exact.nearest_float(self._tally.total) if self.has_data else math.nan

    @property
    def mean(self) -> float:
        """Seconds per unit of weight; NaN when no lap has weight."""
        return exact.ratio(self._tally.total, self._tally.weight) if self._tally.weight else math.nan

    @property
    def nonfinite(self) -> int:
        """How many laps were NaN or infinite."""
        return self._tally.nonfinite

    def reset(self) -> None:
        """Nothing timed; laps that still run are forgotten."""
        with LOCK:
            self._tally = WeightedSum()
            self._lap = object()

    def fresh(self) -> "Stopwatch":
        """An empty meter with the same settings."""
        return Stopwatch(priority=self.priority, round=self.round, clock=self._clock)

    def parts(self) -> Parts:
        """The flat form, for exchange between ranks."""
        return self._tally.parts()

    def add_parts(self, parts: Parts) -> None:
        """Add the laps of another stopwatch."""
        with LOCK:
            self._tally.add_parts(parts)

    def state_dict(self) -> dict[str, Any]:
        """The finished laps."""
        return self._tally.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the stopwatch that `state_dict` described."""
        self.reset()
        self._tally.load_state_dict(state)
