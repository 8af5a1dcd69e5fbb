"""The worker processes of a DataLoader under watch: one that dies or stalls is an error, within seconds, that names it.

By itself torch tells of a dead worker from a signal handler, that is by a RuntimeError in whatever line the training
happens to be at, and never tells which worker is late. Here the workers are taken off that handler and looked at while
waiting for a batch, once a second; the error comes out of the loop over batches and nowhere else.

This reads book-keeping of torch's that is not public (`_workers`, `_task_info`, `_rcvd_idx`, `_worker_pids_set`); without it
the error is still raised, with less to say.
"""

import time
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any, Final, final

import torch

from sonde.data.batch import Batch
from sonde.errors import SondeError

POLL_SECONDS: Final = 1.0
"""How long to wait for a batch before looking at the workers; the DataLoader's `timeout`."""


@final
class WatchedWorkers(Iterator[Batch]):
    """The iterator of a DataLoader with workers and `timeout=POLL_SECONDS`."""

    def __init__(self, iterator: Any, stall_seconds: float) -> None:  # torch does not export the iterator's type
        self._iterator = iterator
        self._stall_seconds = stall_seconds
        self._num_done = 0
        if getattr(iterator, "_worker_pids_set", False):
            handling: Any = torch.utils.data._utils.signal_handling
            handling._remove_worker_pids(id(iterator))
            iterator._worker_pids_set = False

    def __next__(self) -> Batch:
        started = time.monotonic()
        while True:
            try:
                batch = next(self._iterator)
            except (RuntimeError, OSError, EOFError) as error:
                # A time-out leaves the iterator as it was: asking again goes on waiting. Anything else is what a dataset
                # raised in its worker, or a batch whose worker died before it was fetched.
                late = isinstance(error, RuntimeError) and "timed out" in str(error)
                if not late:
                    self._wait_for_a_death()
                failure = self._failure(time.monotonic() - started)
                if failure is None and late:
                    continue
                if failure is None:
                    raise
                self._kill_workers()
                raise SondeError(
                    failure,
                    cause=f"waiting for the batch after {self._num_done} of this iteration",
                    hint="a killed worker is most often out of memory (fewer workers, a smaller prefetch), a stalled one "
                    "waits for its disk. The state is that of the last batch handed out: resume from there",
                ) from error
            assert isinstance(batch, Batch)
            self._num_done += 1
            return batch

    def _failure(self, waited_seconds: float) -> str | None:
        """Which worker is dead or too late; None when there is nothing to say yet."""
        workers = self._workers()
        for rank, worker in enumerate(workers):
            code = worker.exitcode
            if code:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                return f"data worker {rank} (process {worker.pid}) {how}"
        if waited_seconds < self._stall_seconds:
            return None
        number = self._late_worker()
        who = "a data worker" if number is None else f"data worker {number} (process {workers[number].pid})"
        return f"{who} has not answered for {self._stall_seconds:g} seconds"

    def _late_worker(self) -> int | None:
        tasks = getattr(self._iterator, "_task_info", {})
        task = tasks.get(getattr(self._iterator, "_rcvd_idx", None))
        return int(task[0]) if task else None

    def _wait_for_a_death(self) -> None:
        """A dying process breaks its connections a moment before it can be seen to be dead."""
        workers = {worker.sentinel: worker for worker in self._workers()}
        for sentinel in connection.wait(list(workers), timeout=POLL_SECONDS):
            workers[sentinel].join(POLL_SECONDS)

    def _workers(self) -> list[Any]:
        return list(getattr(self._iterator, "_workers", []))

    def close(self) -> None:
        """End the workers; called when the loop over batches is left, however it is left."""
        end = getattr(self._iterator, "_shutdown_workers", None)
        if end is not None:
            end()

    def _kill_workers(self) -> None:
        """Nobody waits for them any more, and a stalled one would not end when asked."""
        for worker in self._workers():
            worker.kill()
