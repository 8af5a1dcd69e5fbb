"""The backend interface: something that takes records. To add a backend, write a class with one method.

    class Printer(Backend):
        def write(self, record: Record) -> None:
            if record["type"] == "LOG":
                print(record["step"], record["data"])

A record is a dict that is passed to every backend; no backend may change it:

    LOG         timestamp, elapsedtime, datetime, type, step, rank, data
    METADATA    timestamp, elapsedtime, datetime, type, rank, metric, metadata
    INFO        timestamp, elapsedtime, datetime, type, rank, data (the given object, of any type)

LOG data contains no tensors any more. The logger catches and counts what a backend raises, and logs it once. A backend
that can be slow derives from `QueuedBackend`, so that nothing waits for it.

Backends written for NVIDIA's DLLogger work too: they have `verbosity`, `log(timestamp, elapsedtime, step, data)`,
`metadata(timestamp, elapsedtime, metric, metadata)` and often `flush()`. They receive what `info` records at the step
"PARAMETER", as is customary for DLLogger.
"""

import datetime
import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias, TypedDict

from typing_extensions import override

from sonde.errors import SettingError
from sonde.log.pace import Pace
from sonde.records.values import decode, encode

LOG: Final = "LOG"
METADATA: Final = "METADATA"
INFO: Final = "INFO"

Record: TypeAlias = dict[str, Any]
"""One record, as described above."""

_logger = logging.getLogger("sonde")


class Verbosity(enum.IntEnum):
    """Verbosity levels: a backend takes a record if its own level is at least the record's.

    A backend at OFF takes nothing, and a record logged at OFF goes nowhere.
    """

    OFF = -1
    DEFAULT = 0
    VERBOSE = 1


class BackendOptions(TypedDict, total=False):
    """Keyword options of every backend."""

    every_n: int | None
    """Write one LOG record out of this many; its numbers are means over all of them."""
    every_seconds: float | None
    """Write one LOG record every this many seconds; its numbers are means over all since the previous one."""
    all_ranks: bool | None
    """True: every rank writes. False: only rank 0 does. None: the backend's default."""


class Backend(ABC):
    """Base class of all backends."""

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
        try:
            self.verbosity = Verbosity(verbosity)
        except ValueError:
            raise SettingError(
                f"{verbosity!r} is no verbosity", hint="use Verbosity.OFF, Verbosity.DEFAULT or Verbosity.VERBOSE"
            ) from None
        self.all_ranks = self.ALL_RANKS if all_ranks is None else all_ranks
        self.pace = (
            None if every_n is None and every_seconds is None else Pace(every_n=every_n, every_seconds=every_seconds)
        )
        self._num_lost = 0
        self._reported = False

    def open(self) -> None:  # noqa: B027  most backends are ready once created
        """Prepare for writing. Called before the first record, only on ranks that write."""

    @abstractmethod
    def write(self, record: Record) -> None:
        """Write one record of any type."""

    def write_numbers(self, record: Record) -> None:
        """Write one LOG record whose step consists of integers and whose data are finite numbers: the common case."""
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
            cause = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else reason
            _logger.warning("%s loses records: %s. Training goes on", type(self).__name__, cause)


def as_backend(backend: Any) -> Backend:
    """Return a backend as it is, wrapping one written for DLLogger; raise SettingError for anything else."""
    if isinstance(backend, Backend):
        return backend
    if callable(getattr(backend, "log", None)) and callable(getattr(backend, "metadata", None)):
        return ForeignBackend(backend)
    raise SettingError(f"{backend!r} is no backend", hint="give backends: Logger([StdOutBackend()])")


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

    @override
    def write(self, record: Record) -> None:
        when = datetime.datetime.fromtimestamp(record["timestamp"])  # noqa: DTZ006  local time without a zone, as in DLLogger
        elapsed = record["elapsedtime"]
        if record["type"] == METADATA:
            self._backend.metadata(when, elapsed, record["metric"], record["metadata"])
        elif record["type"] == INFO:
            self._backend.log(when, elapsed, "PARAMETER", as_parameters(record["data"]))
        else:
            self._backend.log(when, elapsed, record["step"], record["data"])

    @override
    def flush(self) -> None:
        if hasattr(self._backend, "flush"):
            self._backend.flush()

    @override
    def close(self) -> None:
        self.flush()
