"""Records that wait for a device, kept in order.

A record with a device tensor is written when its copy has arrived, and every record logged after it waits behind it. The
line moves on at the next `log`, at `flush`, and otherwise within `DELAY_SECONDS` by a thread that lives only while
something waits. A line of `MAX_WAITING` records waits for the device instead of growing.

What a kill can lose: the records still in this line. Those are the ones logged within the last `DELAY_SECONDS`, plus
those whose values the device had not computed yet. A record logged while nothing waits is on the disk when `log` returns,
as always.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

from sonde.log.backend import Record
from sonde.log.device import Copy
from sonde.log.plain import arrived

DELAY_SECONDS: Final = 0.05
MAX_WAITING: Final = 1000


@final
class DeferredRecords:
    """The line of records that wait, and the lock that keeps them and all that follow in order."""

    def __init__(self, write: Callable[[Record, int], None]) -> None:
        self._write = write
        self._lock = threading.RLock()
        self._waiting: deque[tuple[Record, int, Sequence[Copy]]] = deque()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def add(self, record: Record, verbosity: int, copies: Sequence[Copy]) -> None:
        """Write the record in its turn: now, if nothing is waiting and it has no copies on their way."""
        with self._lock:
            if os.getpid() != self._process:
                # Forked: what waits belongs to the parent, which will write it.
                self._waiting.clear()
                self._process = os.getpid()
                self._thread = None
            self._advance(wait=False)
            if not copies and not self._waiting:
                self._write(record, verbosity)
                return
            self._waiting.append((record, verbosity, copies))
            if len(self._waiting) > MAX_WAITING:
                self._write_first()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="sonde-deferred", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Wait for the device and write everything."""
        with self._lock:
            if os.getpid() == self._process:
                self._advance(wait=True)

    def _advance(self, *, wait: bool) -> None:
        """Write what has arrived, in order, up to the first that has not."""
        while self._waiting and (wait or all(_is_ready(copy) for copy in self._waiting[0][2])):
            self._write_first()

    def _write_first(self) -> None:
        record, verbosity, copies = self._waiting.popleft()
        if copies:
            record = {**record, "step": arrived(record["step"]), "data": arrived(record["data"])}
        self._write(record, verbosity)

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(DELAY_SECONDS)
            with self._lock:
                self._advance(wait=False)
                if not self._waiting:
                    self._thread = None
                    return


def _is_ready(copy: Copy) -> bool:
    try:
        return copy.is_ready()
    except Exception:  # noqa: BLE001  a device that has failed says so again when the value is read, and that is recorded
        return True
