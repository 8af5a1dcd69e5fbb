"""Real process groups for tests: a function run on N forked gloo ranks, in a tenth of a second.

results = run_ranks(2, work)        # work(rank) -> plain data, on each rank
"""

import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def run_ranks(
    world_size: int,
    work: Callable[[int], Any],
    *,
    timeout_seconds: float = 60.0,
    killed: Collection[int] = (),
) -> list[Any]:
    """Run `work(rank)` on forked ranks of one gloo group; its results, in order of rank. A failing
    rank fails the test.

    The results travel as JSON. `RANK`, `WORLD_SIZE` and `LOCAL_RANK` are set as torchrun would. The
    ranks in `killed` must die of SIGKILL; they have no result.
    """
    with tempfile.TemporaryDirectory() as folder:
        pids = [_fork(rank, world_size, work, Path(folder)) for rank in range(world_size)]
        try:
            statuses = _wait(pids, timeout_seconds)
        finally:
            for pid in pids:
                _kill(pid)
        errors = [path.read_text() for path in sorted(Path(folder).glob("error*"))]
        assert errors == [], "\n".join(errors)
        expected = [-signal.SIGKILL if rank in killed else 0 for rank in range(world_size)]
        assert statuses == expected, f"ranks ended with {statuses}"
        ended = [rank for rank in range(world_size) if rank not in killed]
        return [json.loads((Path(folder) / f"result{rank}").read_text()) for rank in ended]


def _fork(rank: int, world_size: int, work: Callable[[int], Any], folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=30),
        )
        (folder / f"result{rank}").write_text(json.dumps(work(rank)))
        if dist.is_initialized():  # `work` may have ended it
            dist.destroy_process_group()
        status = 0
    except BaseException:  # noqa: BLE001  whatever it was, the parent must hear of it
        (folder / f"error{rank}").write_text(f"rank {rank}:\n{traceback.format_exc()}")
    finally:
        os._exit(status)


def _wait(pids: list[int], timeout_seconds: float) -> list[int | None]:
    statuses: list[int | None] = [None] * len(pids)
    deadline = time.monotonic() + timeout_seconds
    while None in statuses and time.monotonic() < deadline:
        for position, pid in enumerate(pids):
            if statuses[position] is None:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    statuses[position] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return statuses


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return
