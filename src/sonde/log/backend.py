"""What a backend is: something that takes records. To add one, write a class with one method.

    @final
    class Printer(Backend):
        def write(self, record: Record) -> None:
            if record["type"] == "LOG":
                print(record["step"], record["data"])

A record is a dict that every backend is handed and none may change:

    LOG         timestamp, elapsedtime, datetime, type, step, rank, data
    METADATA    timestamp, elapsedtime, datetime, type, rank, metric, metadata
    INFO        timestamp, elapsedtime, datetime, type, rank, data (as it was given: any object)

In LOG data no value is a tensor any more. What a backend raises is counted and said once by the logger; it reaches
nobody else. A backend that can be slow derives from `QueuedBackend` and is then never waited for.

A backend written to the interface of NVIDIA's DLLogger is taken too: it has `verbosity`, `log(timestamp, elapsedtime, step, data)`,
`metadata(timestamp, elapsedtime, metric, metadata)` and often `flush()`. What `info` records it gets as DLLogger's users write it: at the
step "PARAMETER".
"""

import datetime
import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias, TypedDict, final

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


@final
class Verbosity(enum.IntEnum):
    """A backend takes a record when its own level is at least the record's.

    A backend that is OFF takes nothing, and a record logged at OFF goes nowhere.
    """

    OFF = -1
    DEFAULT = 0
    VERBOSE = 1


class BackendOptions(TypedDict, total=False):
    """What every backend can be told, by keyword."""

    every_n: int | None
    """Write one of every this many LOG records; its numbers are means over all of them."""
    every_seconds: float | None
    """Write one LOG record every this many seconds; its numbers are means over all since the previous one."""
    all_ranks: bool | None
    """True: every rank writes. False: only rank 0 does. None: as is usual for this backend."""


class Backend(ABC):
    """Base of all backends."""

    ALL_RANKS: ClassVar[bool] = False
    """Does every rank write, unless told otherwise?"""

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

    def open(self) -> None:  # noqa: B027  most backends are ready when they are made
        """A logger begins to write here. Called before the first record, and only on the ranks that write."""

    @abstractmethod
    def write(self, record: Record) -> None:
        """Take one record of any type."""

    def write_numbers(self, record: Record) -> None:
        """Take one LOG record whose step is whole numbers and whose data are finite numbers: the common case."""
        self.write(record)

    def flush(self) -> None:  # noqa: B027  most backends hold nothing back
        """Bring out everything that is held back."""

    def close(self) -> None:  # noqa: B027  most backends have nothing to close
        """Flush, and let go of what is held. Records that come later are lost, and counted."""

    @property
    def num_lost(self) -> int:
        """Records this backend was handed and did not keep."""
        return self._num_lost

    def lose(self, num_records: int, reason: object) -> None:
        """Count records as lost; the first time, say why. Never raises."""
        self._num_lost += num_records
        if not self._reported:
            self._reported = True
            cause = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else reason
            _logger.warning("%s loses records: %s. Training goes on", type(self).__name__, cause)


def as_backend(backend: Any) -> Backend:
    """A backend of ours as it is, one of DLLogger's wrapped; SettingError for anything else."""
    if isinstance(backend, Backend):
        return backend
    if callable(getattr(backend, "log", None)) and callable(getattr(backend, "metadata", None)):
        return ForeignBackend(backend)
    raise SettingError(f"{backend!r} is no backend", hint="give backends: Logger([StdOutBackend()])")


def as_parameters(data: Any) -> Any:
    """What `info` was given, as the data of a LOG record."""
    plain = decode(encode(data))
    return plain if isinstance(plain, Mapping) else {"info": plain}


@final
class ForeignBackend(Backend):
    """Hands records on. On every rank, as DLLogger does."""

    ALL_RANKS = True

    def __init__(self, backend: Any) -> None:
        super().__init__(getattr(backend, "verbosity", 0))
        self._backend = backend

    @override
    def write(self, record: Record) -> None:
        when = datetime.datetime.fromtimestamp(record["timestamp"])  # noqa: DTZ006  (local time without a zone, as there)
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
