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
from typing import Any, Final

import torch

from sonde.data.batch import Batch
from sonde.errors import SondeError

POLL_SECONDS: Final = 1.0
"""How long to wait for a batch before looking at the workers; the DataLoader's `timeout`."""


def watched(iterator: Any, stall_seconds: float) -> Iterator[Batch]:  # torch does not export the iterator's type
    """The batches of a DataLoader's iterator, made with workers and a `timeout` of at most POLL_SECONDS. Ends the workers at the end."""
    workers: list[Any] = list(getattr(iterator, "_workers", []))
    if getattr(iterator, "_worker_pids_set", False):
        handling: Any = torch.utils.data._utils.signal_handling
        handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    num_done, started = 0, time.monotonic()
    try:
        while True:
            try:
                batch = next(iterator)
            except (RuntimeError, OSError, EOFError) as error:
                # A time-out leaves the iterator as it was: asking again goes on waiting. Anything else is what a dataset
                # raised in its worker, or a batch whose worker died before it was fetched.
                is_late = isinstance(error, RuntimeError) and "timed out" in str(error)
                if not is_late:  # a dying process breaks its connections a moment before it can be seen to be dead
                    for sentinel in connection.wait([worker.sentinel for worker in workers], timeout=POLL_SECONDS):
                        next(worker for worker in workers if worker.sentinel == sentinel).join(POLL_SECONDS)
                failure = _death(workers)
                if is_late and not failure and time.monotonic() - started >= stall_seconds:
                    failure = f"{_late_worker(iterator, workers)} has not answered for {stall_seconds:g} seconds"
                if not failure:
                    if is_late:
                        continue
                    raise
                for worker in workers:  # nobody waits for them any more, and a stalled one would not end when asked
                    worker.kill()
                raise SondeError(
                    failure,
                    cause=f"waiting for the batch after {num_done} of this iteration",
                    hint="a killed worker is most often out of memory (fewer workers, a smaller prefetch), a stalled one "
                    "waits for its disk. The state is that of the last batch handed out: resume from there",
                ) from error
            num_done += 1
            yield batch
            started = time.monotonic()
    finally:
        getattr(iterator, "_shutdown_workers", lambda: None)()


def _death(workers: list[Any]) -> str | None:
    for rank, worker in enumerate(workers):
        if code := worker.exitcode:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            return f"data worker {rank} (process {worker.pid}) {how}"
    return None


def _late_worker(iterator: Any, workers: list[Any]) -> str:
    task = getattr(iterator, "_task_info", {}).get(getattr(iterator, "_rcvd_idx", None))
    return f"data worker {task[0]} (process {workers[task[0]].pid})" if task else "a data worker"
