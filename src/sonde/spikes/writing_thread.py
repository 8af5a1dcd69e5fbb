"""A background thread for writing during training: tasks run in the order they are submitted, and `flush` waits for all of them.

It starts with the first task and runs until `close`. A normal exit of Python waits for it. A forked child starts its
own.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class WritingThread:
    """Runs tasks one after another. Tasks must not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None
        self._pid = os.getpid()

    def do(self, work: Callable[..., None], *args: Any) -> None:
        """Call `work` after all earlier tasks."""
        if self._thread is None or self._pid != os.getpid():
            self._thread, self._pid = ThreadPoolExecutor(1, thread_name_prefix=self._name), os.getpid()
        self._last = self._thread.submit(work, *args)

    def flush(self) -> None:
        """Wait until all tasks are done."""
        if self._last is not None and self._pid == os.getpid():
            self._last.result()

    def close(self) -> None:
        """Finish all tasks and end the thread; a later task starts it again."""
        self.flush()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.shutdown()
        self._thread = self._last = None
