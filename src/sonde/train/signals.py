"""SIGTERM, Ctrl-C and a terminal that goes away (SIGHUP): finish the step, save, and exit 143, 130 or 129; a second one exits at once.

The handlers only set a flag, which the loop reads between steps: nothing is saved from inside a signal handler. They are
installed for the time of a `with` block, in the main thread only, and the former ones come back afterwards.
"""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final, final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@final
class StopSignals:
    """Notices requests to stop from outside."""

    def __init__(self) -> None:
        self.received: int | None = None
        """The number of the first signal that came; None while there was none."""
        self._former: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` asks for SIGHUP to be ignored
                    self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former.clear()

    @property
    def name(self) -> str:
        """What came, for the record: `SIGTERM`."""
        return signal.Signals(self.received).name if self.received is not None else ""

    @property
    def exit_code(self) -> int:
        """What a shell would report: 128 plus the signal's number."""
        return 128 + (self.received or 0)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  Python's signature
        if self.received is not None:
            # Asked twice: whoever it is does not want to wait for a checkpoint. No cleanup: it might be what hangs.
            os._exit(128 + number)
        self.received = number
