"""Making records: each is stamped with its rank and its times.

`timestamp` is in seconds since the epoch, `elapsedtime` in seconds since the logger started, `datetime` local time as text. All
three come from one reading of the system clock, cut to whole microseconds, so `timestamp - elapsedtime` is the same for
every record of one logger: that is how a reader tells one start of a run from the next.

Local time is formatted once a second and its fraction put together from a table, the clock is read as an integer, and the
record is built in the same call: against formatting each time by itself this takes a fifth off a whole `log` call.
"""

import time
from time import time_ns
from typing import Any, Final, TypeAlias, final

from sonde.log.backend import LOG, Record

_Second: TypeAlias = tuple[int, float, str, str, int]
"""A second: its start in nanoseconds and in seconds, its local time `2026-11-15 19:46:47.`, its zone `+00:00`, and the
microseconds from the logger's start to it."""

_MILLION: Final = 1_000_000
_BILLION: Final = 1_000_000_000
_THREE_DIGITS: Final = tuple(f"{number:03d}" for number in range(1000))


@final
class Stamp:
    """Makes the records of one logger. Safe to share between threads: the cached second is replaced whole."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._start_micro = time_ns() // 1000
        self._second = self._format_second(time_ns())

    def log_record(self, step: Any, data: Any) -> Record:
        """A LOG record of this moment."""
        start_nano, start, text, zone, elapsed = self._second
        nano = time_ns() - start_nano
        if not 0 <= nano < _BILLION:
            self._second = start_nano, start, text, zone, elapsed = self._format_second(nano + start_nano)
            nano %= _BILLION
        micro = nano // 1000
        return {
            "timestamp": start + micro / _MILLION,
            "elapsedtime": (elapsed + micro) / _MILLION,
            "datetime": f"{text}{_THREE_DIGITS[micro // 1000]}{_THREE_DIGITS[micro % 1000]}{zone}",
            "type": LOG,
            "step": step,
            "rank": self._rank,
            "data": data,
        }

    def note(self, kind: str, content: Record) -> Record:
        """A record of another kind of this moment."""
        times = self.log_record(None, None)
        return {name: times[name] for name in ("timestamp", "elapsedtime", "datetime")} | {
            "type": kind,
            "rank": self._rank,
            **content,
        }

    def _format_second(self, nano: int) -> _Second:
        seconds = nano // _BILLION
        local = time.localtime(seconds)
        sign = "-" if local.tm_gmtoff < 0 else "+"
        hours, minutes = divmod(abs(local.tm_gmtoff) // 60, 60)
        text = time.strftime("%Y-%m-%d %H:%M:%S.", local)
        zone = f"{sign}{hours:02d}:{minutes:02d}"
        return seconds * _BILLION, float(seconds), text, zone, seconds * _MILLION - self._start_micro
