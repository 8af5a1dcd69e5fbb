"""The backend interface: something that takes records. To add a backend, write a class with one
method.

    class Printer(Backend):
        def write(self, record: Record) -> None:
            if record["type"] == "LOG":
                print(record["step"], record["data"])

A record is a dict that is passed to every backend; no backend may change it:

    LOG         timestamp, elapsedtime, datetime, type, step, rank, data
    METADATA    timestamp, elapsedtime, datetime, type, rank, metric, metadata
    INFO        timestamp, elapsedtime, datetime, type, rank, data (the given object, of any type)

LOG data contains no tensors any more. The logger catches and counts what a backend raises, and logs
it once.

A backend that can be slow (a tracker, event files) derives from `QueuedBackend` and works in its
own thread, behind a bounded queue. Queuing a record costs a few microseconds and never waits. When
the queue is full, the newest record is dropped and counted in `num_lost`: a slow tracker loses
points, but training is not affected. `flush` waits until everything queued before it has been sent,
at most `FLUSH_SECONDS`. A kill loses what is in the queue; the JSON stream has it all. After a fork
the child has no such thread: its records are dropped and counted, and the parent's tracker is not
disturbed.

Backends written for DLLogger work too: they have `verbosity`, `log(timestamp, elapsedtime, step,
data)`, `metadata(timestamp, elapsedtime, metric, metadata)` and often `flush()`. Those of TCAP have
`info(timestamp, data)`; those of NVIDIA receive what `info` records at the step "PARAMETER", as is
customary there.
"""

import datetime
import enum
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar, Final, TypeAlias

from sonde.errors import SettingError
from sonde.records.values import decode, encode, step_numbers

LOG: Final = "LOG"
METADATA: Final = "METADATA"
INFO: Final = "INFO"

Record: TypeAlias = dict[str, Any]
"""One record, as described above."""

QUEUE_RECORDS: Final = 10_000
"""Maximum number of queued records before new ones are dropped."""
FLUSH_SECONDS: Final = 30.0
"""Give up a flush after this many seconds: a tracker that hangs must not delay the end of
training.
"""

_logger = logging.getLogger("sonde")


class Verbosity(enum.IntEnum):
    """Verbosity levels: a backend takes a record if its own level is at least the record's.

    A backend at OFF takes nothing, and a record logged at OFF goes nowhere.
    """

    OFF = -1
    DEFAULT = 0
    VERBOSE = 1


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
    """Passes one record in `every_n`, or the first and one per `every_seconds`; with both,
    whichever is due first.

    No record is hidden: the numbers of those held back are averaged into the next one written. A
    written record represents all since the previous one: a number is their mean, anything else the
    last value given. It has the step and the times of the last of them, and every key that any of
    them had. Pending values are written on `take`, and when the shape of the step changes (an
    iteration, then an epoch's summary). They never mix with records whose step is a name or empty;
    those pass unchanged.
    """

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
        """Return what to write for `record`: nothing, only itself, or means of what was held
        back.
        """
        shape = len(step_numbers(record["step"]))
        with self._lock:
            if not shape:
                return [*self._emit(), record]
            out = []
            if self._last is not None and len(step_numbers(self._last["step"])) != shape:
                out = self._emit()
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


class Backend(ABC):
    """Base class of all backends.

    ```python
    from sonde import Logger
    from sonde.log import Backend

    class Remember(Backend):
        seen = []

        def write(self, record):
            self.seen.append(record)

    with Logger(Remember()) as logger:
        logger.log(step=1, data={"loss": 4.5})
    assert Remember.seen[0]["data"] == {"loss": 4.5}
    ```
    """

    ALL_RANKS: ClassVar[bool] = False
    """Whether every rank writes by default."""

    def __init__(
        self,
        verbosity: int = Verbosity.DEFAULT,
        *,
        every_n: int | None = None,
        every_seconds: float | None = None,
        all_ranks: bool | None = None,
    ) -> None:
        """The options of every backend: its level, how often it writes, and on which ranks.

        Of LOG records, one in `every_n` or one every `every_seconds` is written; its numbers are
        means over all since the previous one. `all_ranks` says whether every rank writes or only
        rank 0; None is the backend's default.
        """
        try:
            self.verbosity = Verbosity(verbosity)
        except ValueError:
            raise SettingError(
                f"{verbosity!r} is no verbosity",
                hint="use Verbosity.OFF, Verbosity.DEFAULT or Verbosity.VERBOSE",
            ) from None
        self.all_ranks = self.ALL_RANKS if all_ranks is None else all_ranks
        if every_n is None and every_seconds is None:
            self.pace = None
        else:
            self.pace = Pace(every_n=every_n, every_seconds=every_seconds)
        self._num_lost = 0
        self._reported = False

    def open(self) -> None:  # noqa: B027  most backends are ready once created
        """Prepare for writing. Called before the first record, only on ranks that write."""

    @abstractmethod
    def write(self, record: Record) -> None:
        """Write one record of any type."""

    def write_numbers(self, record: Record) -> None:
        """Write one LOG record whose step consists of integers and whose data are finite numbers:
        the common case.
        """
        self.write(record)

    def flush(self) -> None:  # noqa: B027  most backends do not buffer
        """Write out everything that is buffered."""

    def close(self) -> None:  # noqa: B027  most backends have nothing to close
        """Flush and release all resources. Later records are lost and counted."""

    @property
    def num_lost(self) -> int:
        """Number of records that this backend received but did not keep."""
        return self._num_lost

    def lose(self, num_records: int, reason: object) -> None:
        """Count records as lost and log the reason the first time. Never raises."""
        self._num_lost += num_records
        if not self._reported:
            self._reported = True
            cause = reason
            if isinstance(reason, BaseException):
                cause = f"{type(reason).__name__}: {reason}"
            _logger.warning("%s loses records: %s. Training goes on", type(self).__name__, cause)


class QueuedBackend(Backend):
    """Base class of slow backends: `write` queues a record, `send` does the work in the thread."""

    def __init__(self, verbosity: int = Verbosity.DEFAULT, **options: Any) -> None:
        super().__init__(verbosity, **options)
        self._queue: SimpleQueue[Record | threading.Event | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._thread_lock = threading.Lock()
        self._closed = False

    @abstractmethod
    def send(self, record: Record) -> None:
        """Send one record; may be slow and may raise. Runs in the backend's own thread."""

    def rest(self) -> None:
        """Flush buffers to disk while the queue is empty. Runs in the backend's own thread."""

    def finish(self) -> None:
        """Close the tracker. Runs in the caller's thread, after everything has been sent."""

    def write(self, record: Record) -> None:
        """Queue a record; drop and count it if the queue is full."""
        if self._queue.qsize() >= QUEUE_RECORDS:
            self.lose(1, f"its queue of {QUEUE_RECORDS} records is full")
            return
        if not self._has_thread():
            self.lose(1, "it was closed, or belongs to the process this one was forked from")
            return
        # The caller may change its dict after `log` has returned.
        self._queue.put(
            {**record, "data": dict(record["data"])} if record["type"] == "LOG" else record
        )

    def flush(self) -> None:
        """Wait until everything queued so far has been sent."""
        if self._thread is None or not self._thread.is_alive():
            return
        sent = threading.Event()
        self._queue.put(sent)
        if not sent.wait(FLUSH_SECONDS):
            self.lose(0, f"not flushed within {FLUSH_SECONDS:g} s")

    def close(self) -> None:
        """Send what is left, end the thread, close the tracker."""
        if self._closed:
            return
        self.flush()
        with self._thread_lock:
            self._closed = True
            thread = self._thread
            self._thread = None
        if thread is not None and thread.is_alive():
            self._queue.put(None)
            thread.join(FLUSH_SECONDS)
            if thread.is_alive():
                self.lose(self._queue.qsize(), "the tracker hangs")
                return
        self.finish()

    def _has_thread(self) -> bool:
        """Return whether there is a thread to send records; it is started on first use."""
        thread = self._thread
        if thread is None:
            with self._thread_lock:
                if self._closed:
                    return False
                if self._thread is None:
                    name = f"sonde-{type(self).__name__}"
                    self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                    self._thread.start()
                thread = self._thread
        return thread.is_alive()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if not isinstance(item, threading.Event):
                    self.send(item)
                if isinstance(item, threading.Event) or self._queue.empty():
                    self.rest()
            except Exception as error:  # noqa: BLE001
                # a tracker may raise anything, and must not end the thread
                self.lose(1, error)
            if isinstance(item, threading.Event):
                item.set()


def as_backend(backend: Any) -> Backend:
    """Return a backend as it is, wrapping one written for DLLogger; raise SettingError for anything
    else.
    """
    if isinstance(backend, Backend):
        return backend
    if callable(getattr(backend, "log", None)) and callable(getattr(backend, "metadata", None)):
        return ForeignBackend(backend)
    raise SettingError(
        f"{backend!r} is no backend", hint="give backends: Logger([StdOutBackend()])"
    )


def as_parameters(data: Any) -> Any:
    """Return what `info` was given as the data of a LOG record."""
    plain = decode(encode(data))
    return plain if isinstance(plain, Mapping) else {"info": plain}


class ForeignBackend(Backend):
    """Passes records to a backend written for DLLogger, on every rank, as DLLogger does."""

    ALL_RANKS = True

    def __init__(self, backend: Any) -> None:
        super().__init__(getattr(backend, "verbosity", 0))
        self._backend = backend

    def write(self, record: Record) -> None:
        """Call the method of the old backend that belongs to the record's kind."""
        # local time without a zone, as in DLLogger
        when = datetime.datetime.fromtimestamp(record["timestamp"])  # noqa: DTZ006
        elapsed = record["elapsedtime"]
        if record["type"] == METADATA:
            self._backend.metadata(when, elapsed, record["metric"], record["metadata"])
        elif record["type"] == INFO and hasattr(self._backend, "info"):  # TCAP's have it
            self._backend.info(when, record["data"])
        elif record["type"] == INFO:
            self._backend.log(when, elapsed, "PARAMETER", as_parameters(record["data"]))
        else:
            self._backend.log(when, elapsed, record["step"], record["data"])

    def flush(self) -> None:
        """Flush the old backend, if it can."""
        if hasattr(self._backend, "flush"):
            self._backend.flush()

    def close(self) -> None:
        """Flush: DLLogger's backends know no end."""
        self.flush()
