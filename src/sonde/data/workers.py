"""Where parts are made: in this process, in a pool of processes, or on a Dask cluster. Any `Executor` will do.

`in_order` keeps a bounded number of tasks under way and gives results in the order of the tasks, so that neither a
decompressed corpus nor its results pile up in memory.
"""

import contextlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Any, Final, TypeVar

from sonde.errors import MissingDependency, SettingError, SondeError, check_at_least

_DASK: Final = "dask://"
_TASKS_PER_WORKER: Final = 3
_CONNECT_SECONDS: Final = 10

T = TypeVar("T")
R = TypeVar("R")


@contextlib.contextmanager
def open_executor(workers: int, address: str | None = None) -> Iterator[tuple[Executor | None, int]]:
    """An executor (None: this process) and how many tasks to keep under way in it. `address` is `dask://HOST:PORT`, or None."""
    if address is not None:
        with _dask_executor(address) as (executor, num_workers):
            yield executor, num_workers * _TASKS_PER_WORKER
        return
    check_at_least(1, workers=workers)
    if workers == 1:
        yield None, 1
        return
    # Started afresh, not forked: the parent may hold threads (tokenizers, torch) that do not survive a fork.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    try:
        yield pool, workers * _TASKS_PER_WORKER
    finally:
        pool.shutdown(cancel_futures=True)


def in_order(
    executor: Executor | None, function: Callable[[T], R], tasks: Iterable[T], *, num_under_way: int
) -> Iterator[R]:
    """The results of `function` over `tasks`, in their order; without an executor, computed here."""
    if executor is None:
        yield from map(function, tasks)
        return
    pending: deque[Future[R]] = deque()
    try:
        for task in tasks:
            pending.append(executor.submit(function, task))
            if len(pending) >= num_under_way:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenExecutor as error:
        raise SondeError(
            "a worker process died",
            cause=f"{error}; out of memory, perhaps",
            hint="run the same command again: it goes on with the parts that are done; fewer workers need less memory",
        ) from error
    finally:
        for future in pending:
            future.cancel()


@contextlib.contextmanager
def _dask_executor(address: str) -> Iterator[tuple[Executor, int]]:
    if not address.startswith(_DASK) or address == _DASK:
        raise SettingError(f"the executor {address!r} is not known", hint="dask://HOST:PORT names a Dask scheduler")
    try:
        import distributed
    except ImportError:
        raise MissingDependency("distributed", needed_for="a Dask executor", extra="dask") from None
    scheduler = "tcp://" + address.removeprefix(_DASK)
    try:
        connect: Any = distributed.Client
        client = connect(scheduler, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise SettingError(f"there is no Dask scheduler at {address}", cause=str(error)) from error
    with client:
        num_threads = sum(client.nthreads().values())
        if num_threads == 0:
            raise SettingError(f"the Dask cluster at {address} has no workers")
        # `pure=False`: a part is a file, and dask must not take an old result for it.
        yield client.get_executor(pure=False), num_threads


def _end_with_parent() -> None:
    """A pool's processes wait for work for ever when their parent is killed. Ours go with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_exit, args=(parent,), daemon=True).start()


def _wait_and_exit(parent: Any) -> None:  # multiprocessing has no public type for it
    parent.join()
    os._exit(1)
