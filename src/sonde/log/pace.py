"""Write fewer records without hiding any: the numbers of records held back are averaged into the next one written.

A written record represents all since the previous one: a number is their mean, anything else the last value given. It
has the step and the times of the last of them, and every key that any of them had. Pending values are written on
`take`, and when the shape of the step changes (an iteration, then an epoch's summary). They never mix with records
whose step is a name or empty; those pass unchanged.
"""

import math
import threading
import time
from dataclasses import dataclass
from typing import Any

from sonde.errors import SettingError
from sonde.records.values import step_numbers

Record = dict[str, Any]


@dataclass(slots=True)
class _Mean:
    """The running mean of one key."""

    total: float = 0.0
    num: int = 0
    last: object = None
    varied: bool = False
    """True if the value has ever changed. A constant is returned as it came, not as a float."""

    def add(self, value: object) -> None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self.varied = self.varied or (self.num > 0 and value != self.last)
            try:
                self.total += value
                self.num += 1
            except OverflowError:  # an int beyond what a float can hold
                self.num = 0
        else:
            self.num = 0
            self.total = 0.0
            self.varied = False
        self.last = value

    def value(self) -> object:
        return self.total / self.num if self.num and self.varied else self.last


class Pace:
    """Passes one record in `every_n`, or the first and one per `every_seconds`; with both, whichever is due first."""

    def __init__(self, *, every_n: int | None = None, every_seconds: float | None = None) -> None:
        if every_n is not None and every_n < 1:
            raise SettingError(f"every_n is 1 or more, not {every_n}")
        if every_seconds is not None and not every_seconds >= 0:
            raise SettingError(f"every_seconds is 0 or more, not {every_seconds}")
        self._every_n = every_n
        self._every_seconds = every_seconds
        self._lock = threading.Lock()
        self._means: dict[object, _Mean] = {}
        self._num_pending = 0
        self._last: Record | None = None
        self._due = -math.inf  # the first record passes immediately, to show that the run is alive

    def admit(self, record: Record) -> list[Record]:
        """Return what to write for `record`: nothing, only itself, or means of what was held back."""
        shape = len(step_numbers(record["step"]))
        with self._lock:
            if not shape:
                return [*self._emit(), record]
            out = self._emit() if self._last is not None and len(step_numbers(self._last["step"])) != shape else []
            self._hold(record)
            return [*out, *self._emit()] if self._is_due() else out

    def take(self) -> list[Record]:
        """Return what is still held back, as one record."""
        with self._lock:
            return self._emit()

    def _hold(self, record: Record) -> None:
        for key, value in record["data"].items():
            mean = self._means.get(key)
            if mean is None:
                mean = self._means[key] = _Mean()
            mean.add(value)
        self._num_pending += 1
        self._last = record

    def _is_due(self) -> bool:
        if self._every_n is not None and self._num_pending >= self._every_n:
            return True
        return self._every_seconds is not None and time.monotonic() >= self._due

    def _emit(self) -> list[Record]:
        if self._last is None:
            return []
        record = {**self._last, "data": {key: mean.value() for key, mean in self._means.items()}}
        self._means = {}
        self._num_pending = 0
        self._last = None
        self._due = time.monotonic() + (self._every_seconds or 0.0)
        return [record]
