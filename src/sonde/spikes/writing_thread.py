"""One thread that writes beside a training: things are done in the order they are handed over, and `flush` waits for all of them.

It begins with the first thing to do and lives until `close`. A normal exit of Python waits for it. A forked child begins one of its own.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, final


@final
class WritingThread:
    """Does one thing after another. What it is handed must not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None
        self._pid = os.getpid()

    def do(self, work: Callable[..., None], *args: Any) -> None:
        """Call `work` after everything before it."""
        if self._thread is None or self._pid != os.getpid():
            self._thread, self._pid = ThreadPoolExecutor(1, thread_name_prefix=self._name), os.getpid()
        self._last = self._thread.submit(work, *args)

    def flush(self) -> None:
        """Wait until everything is done."""
        if self._last is not None and self._pid == os.getpid():
            self._last.result()

    def close(self) -> None:
        """Do everything and end the thread; it begins again when there is more to do."""
        self.flush()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.shutdown()
        self._thread = self._last = None
