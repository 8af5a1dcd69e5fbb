"""One thread that does work in the background, one task after another.

Everything of sonde that writes beside training uses it: kept states and batches, spike records,
checkpoints. The thread starts with the first task and ends when there was none for a second. A
normal exit of Python waits for what is left. A forked child begins with none of the parent's tasks,
which the parent does, and with a thread of its own.
"""

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

Task = Callable[[], object]

_IDLE_SECONDS: Final = 1.0

_running: "set[Worker]" = set()
"""The workers that have a thread."""
_known: "weakref.WeakSet[Worker]" = weakref.WeakSet()
"""All workers of this process, which a forked child begins anew."""


class Worker:
    """Does tasks in the background, in order."""

    def __init__(
        self,
        name: str,
        *,
        on_error: Callable[[Exception], object],
        poll_seconds: float | None = None,
    ) -> None:
        """`on_error` receives what a task raises, in the worker's thread.

        With `poll_seconds`, the thread looks for tasks that often instead of being woken: giving it
        a task is cheaper then.
        """
        self._name = name
        self._on_error = on_error
        self._poll_seconds = poll_seconds
        self._tasks: deque[Task] = deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_working = False
        _watch_forks(self)
        self.cpu_seconds = 0.0
        """The CPU time of the thread, since it last started."""

    def __len__(self) -> int:
        """Return the number of tasks that wait."""
        return len(self._tasks)

    @property
    def is_busy(self) -> bool:
        """Whether something is still to be done."""
        return bool(self._tasks) or self._is_working

    def do(self, task: Task) -> None:
        """Do a task after all earlier ones."""
        with self._lock:
            self._tasks.append(task)
            if self._thread is None:
                self._start()
        if self._poll_seconds is None:
            self._wake.set()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything given so far is done; return False if that took too long."""
        if not self.is_busy or threading.current_thread() is self._thread:
            return True
        done = threading.Event()
        self.do(done.set)
        self._wake.set()
        return done.wait(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Finish everything; return False if that took too long. A later task is still done."""
        return self.flush(timeout)

    def begin_in_child(self) -> None:
        """Leave the parent's tasks to the parent. Its locks may be held by threads that are
        gone.
        """
        self._tasks = deque()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread = None
        self._is_working = False
        _running.discard(self)

    def _start(self) -> None:
        if not _running:
            atexit.register(_finish)
        _running.add(self)
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        idle_since = time.monotonic()
        while True:
            self._wake.wait(self._poll_seconds or _IDLE_SECONDS)
            self._wake.clear()
            if self._tasks:
                self._is_working = True
                while self._tasks:
                    self._do_next()
                self._is_working = False
                self.cpu_seconds = time.thread_time()
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= _IDLE_SECONDS and self._ends():
                return

    def _ends(self) -> bool:
        """Give the thread up, unless a task has come meanwhile."""
        with self._lock:
            if self._tasks:
                return False
            self._thread = None
            _running.discard(self)
            return True

    def _do_next(self) -> None:
        task = self._tasks.popleft()
        try:
            task()
        except Exception as error:  # noqa: BLE001  a thread has no caller to raise to
            with contextlib.suppress(Exception):  # a handler of a user's own log may fail too
                self._on_error(error)


def _finish() -> None:
    """Wait for all workers when Python ends."""
    for worker in list(_running):
        worker.flush()


def _watch_forks(worker: Worker) -> None:
    """Begin a worker anew in forked children."""
    if not _known:
        os.register_at_fork(after_in_child=_begin_in_child)
    _known.add(worker)


def _begin_in_child() -> None:
    for worker in _known:
        worker.begin_in_child()
