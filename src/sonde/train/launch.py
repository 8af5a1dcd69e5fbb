"""Join the process group that torchrun's environment describes, and name the ranks that were missing when it broke.

    with process_group(timeout_seconds=600) as device:      # cuda:LOCAL_RANK with nccl, else the CPU with gloo
        with missing_ranks_named():
            …

Without torchrun there is one rank and no group. When a collective fails (a peer died, or exceeded the timeout), the
remaining ranks sign in at the store, and the error names those that did not.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from sonde import ranks
from sonde.errors import SondeError
from sonde.records.values import decode, encode

_SIGN_IN_SECONDS: Final = 5.0
_ASK_SECONDS: Final = 0.1
_numbers: Final = itertools.count()


@contextmanager
def process_group(*, timeout_seconds: float) -> Iterator[torch.device]:
    """Yield this rank's device and keep the process group open for the block. Nested blocks share the outer group."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if dist.is_initialized() or "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        yield device
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    try:
        yield device
    finally:
        dist.destroy_process_group()


@contextmanager
def missing_ranks_named() -> Iterator[None]:
    """When a collective fails inside the block, name the missing ranks in the error. Other errors pass unchanged."""
    try:
        yield
    except RuntimeError as error:
        missing = _missing_ranks() if _is_of_a_collective(error) else []
        if not missing:
            raise
        raise SondeError(
            f"rank {dist.get_rank()} lost {_named(missing)} of {dist.get_world_size()}",
            cause=str(error).splitlines()[0],
            hint="look at what that rank said last; started again, the run goes on from its last checkpoint",
        ) from error


def found_by_rank_0(find: Callable[[], Any]) -> Any:
    """Run `find` on rank 0 and return its result, as plain data, on every rank. Every rank must call it.

    The other ranks poll the store, so no collective can time out however long it takes. If rank 0 raises, all ranks do.
    """
    if ranks.world_size() == 1:
        return find()
    store: Any = dist.distributed_c10d._get_default_store()
    key = f"sonde/found/{next(_numbers)}"
    if ranks.rank() == 0:
        try:
            answer: Any = {"found": find()}
        except SondeError as error:
            answer = {"error": [error.message, error.cause, error.hint]}
        store.set(key, encode(answer))
    else:
        while not store.check([key]):
            time.sleep(_ASK_SECONDS)
        answer = decode(store.get(key))
    ranks.any_rank(False)  # the store may live on rank 0, which must stay until all have read it
    if "error" in answer:
        message, cause, hint = answer["error"]
        raise SondeError(message, cause=cause, hint=hint)
    return answer["found"]


def _is_of_a_collective(error: RuntimeError) -> bool:
    """Return whether a collective raised the error. Gloo's errors have no type of their own, only typical texts."""
    is_of_gloo = any(sign in str(error) for sign in ("gloo", "pair closure"))
    return dist.is_initialized() and (isinstance(error, dist.DistError) or is_of_gloo)


def _missing_ranks() -> list[int]:
    """Return the ranks that do not sign in within a few seconds after a failure."""
    world = dist.get_world_size()
    try:
        store: Any = dist.distributed_c10d._get_default_store()
        store.set(f"sonde/broken/{dist.get_rank()}", "here")
        deadline = time.monotonic() + _SIGN_IN_SECONDS
        missing = list(range(world))
        while missing and time.monotonic() < deadline:
            missing = [rank for rank in missing if not store.check([f"sonde/broken/{rank}"])]
            time.sleep(0.05)
    except RuntimeError:
        return [0]  # the store lives on rank 0 and does not answer
    return missing


def _named(missing: list[int]) -> str:
    return f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}"
