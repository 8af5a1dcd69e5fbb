"""Slow backends (trackers, event files) work in their own thread, behind a bounded queue.

Queuing a record costs a few microseconds and never waits. When the queue is full, the newest record is dropped and
counted in `num_lost`: a slow tracker loses points, but training is not affected. `flush` waits until everything queued
before it has been sent, at most `FLUSH_SECONDS`. A kill loses what is in the queue; the JSON stream has it all. After a
fork the child has no such thread: its records are dropped and counted, and the parent's tracker is not disturbed.
"""

import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from queue import SimpleQueue
from typing import Any, Final

from sonde.log.backend import Backend, Record, Verbosity
from sonde.records.values import as_number

QUEUE_RECORDS: Final = 10_000
"""Maximum number of queued records before new ones are dropped."""
FLUSH_SECONDS: Final = 30.0
"""Give up a flush after this many seconds: a tracker that hangs must not delay the end of training."""


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
        self._queue.put({**record, "data": dict(record["data"])} if record["type"] == "LOG" else record)

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
            thread, self._thread = self._thread, None
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
            except Exception as error:  # noqa: BLE001  a tracker may raise anything, and must not end the thread
                self.lose(1, error)
            if isinstance(item, threading.Event):
                item.set()


def scalars(data: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number in `data` with its name; dicts are flattened (`a/b`), everything else is skipped."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from scalars(value, f"{name}/")
            continue
        if isinstance(value, (list, tuple)) and len(value) == 1:
            value = value[0]
        if getattr(value, "size", 0) == 1:  # a number or an array of numpy
            value = value.item()
        number = None if isinstance(value, str) else as_number(value)
        if number is not None:
            yield name, number
