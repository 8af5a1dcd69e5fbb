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
"""

import logging
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, TypeAlias, TypedDict

from sonde.errors import SettingError
from sonde.log.pace import Pace
from sonde.log.verbosity import Verbosity

LOG: Final = "LOG"
METADATA: Final = "METADATA"
INFO: Final = "INFO"

Record: TypeAlias = dict[str, Any]
"""One record, as described above."""

_logger = logging.getLogger("sonde")


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
