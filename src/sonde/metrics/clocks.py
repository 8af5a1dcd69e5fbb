"""The meters that watch a clock: `Rate` (how many per second) and `Stopwatch` (how long).

Neither counts the time between a save and a load: a loaded clock goes on from now. Over ranks, what was counted is added; a rate is
divided by the longest time of any rank, because ranks run side by side.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, final

from typing_extensions import override

from sonde.metrics.meter import LOCK, scalar_of
from sonde.metrics.meters import SumMeter

# Which laps run, per thread and asyncio task, so that two of them can time the same thing at once. A key is the lap token of
# a stopwatch; the mapping is replaced, never changed, because contexts share it.
_running: ContextVar[Mapping[object, float]] = ContextVar("sonde_running_laps", default={})  # noqa: B039  nobody changes it


@final
class Rate(SumMeter):
    """Things per second, since it was made or reset."""

    __slots__ = ("_clock", "_seconds", "_started")

    kind = "rate"

    def __init__(self, round: int | None = None, clock: Callable[[], float] = time.perf_counter) -> None:  # noqa: A002  fairseq's name for it
        self._clock = clock
        super().__init__(round)

    @override
    def update(self, value: object = 1, weight: object = 1) -> None:
        super().update(value, weight)

    @property
    def elapsed_time(self) -> float:
        """Seconds on the clock."""
        return self._seconds + (0.0 if self._started is None else self._clock() - self._started)

    @property
    @override
    def value(self) -> float:
        counted, seconds = self.sum, self.elapsed_time
        return counted / seconds if self.has_data and seconds > 0.0 else math.nan

    @override
    def reset(self) -> None:
        with LOCK:
            super().reset()
            self._seconds = 0.0
            self._started: float | None = self._clock()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seconds": self.elapsed_time}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._started = self._clock()

    @override
    def merge(self, state: Mapping[str, Any]) -> None:
        super().merge(state)
        self._seconds, self._started = max(self._seconds, float(state["seconds"])), None


@final
class Stopwatch(SumMeter):
    """Seconds between `start` and `stop`, added up; their mean once a lap was given weight."""

    __slots__ = ("_clock", "_lap")

    kind = "stopwatch"

    def __init__(self, round: int | None = None, clock: Callable[[], float] = time.perf_counter) -> None:  # noqa: A002  fairseq's name for it
        self._clock = clock
        super().__init__(round)

    @override
    def take(self, value: float, weight: float) -> None:
        if math.isfinite(value) and math.isfinite(weight):
            self._sum += value
            self._count += weight
        else:
            self._nonfinite += 1

    def start(self) -> None:
        """Begin a lap, for this thread or task."""
        _running.set({**_running.get(), self._lap: self._clock()})

    def stop(self, weight: object = 1, prehook: Callable[[], object] | None = None) -> None:
        """End the lap, after `prehook`; nothing happens when this thread or task has none."""
        if self._lap not in _running.get():
            return
        if prehook is not None:
            prehook()
        now = self._clock()
        laps = dict(_running.get())
        started = laps.pop(self._lap)
        _running.set(laps)
        self.absorb(now - started, scalar_of(weight, "weight"))

    @property
    def elapsed_time(self) -> float:
        """Seconds of the lap that runs; 0 when none does."""
        started = _running.get().get(self._lap)
        return 0.0 if started is None else self._clock() - started

    @property
    @override
    def value(self) -> float:
        if count := self.count:
            return self._sum / count
        return self.sum if self.has_data else math.nan

    @override
    def reset(self) -> None:
        with LOCK:
            super().reset()
            self._lap = object()  # laps that still run are forgotten
