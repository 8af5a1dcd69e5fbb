"""Becoming one rank of several: the process group that torchrun's environment describes, and who was missing when it broke.

    with process_group(timeout_seconds=600) as device:      # cuda:LOCAL_RANK with nccl, else the CPU with gloo
        with missing_ranks_named():
            …

Without torchrun there is one rank and no group. When a collective fails (a peer died, or kept the others waiting beyond the timeout), the
ranks that are left sign in at the store, and those that do not are named in the error.
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
    """This rank's device, with the process group for as long as the block lasts. Inside another such block the group is that one's."""
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
    """When a collective fails in here, say which ranks are gone; any other error passes as it is."""
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
    """What `find` gives on rank 0, as plain data, on every rank; however long it takes. Every rank must call it.

    The others ask the store and sleep in between: no collective is under way that could time out. When rank 0 raises, all do.
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
    ranks.any_rank(False)  # the store may be rank 0's: it stays until all have asked
    if "error" in answer:
        message, cause, hint = answer["error"]
        raise SondeError(message, cause=cause, hint=hint)
    return answer["found"]


def _is_of_a_collective(error: RuntimeError) -> bool:
    """Gloo's errors have no type of their own. They begin with the file that raised them, or speak of a pair of ranks."""
    is_of_gloo = any(sign in str(error) for sign in ("gloo", "pair closure"))
    return dist.is_initialized() and (isinstance(error, dist.DistError) or is_of_gloo)


def _missing_ranks() -> list[int]:
    """The ranks that do not sign in within a few seconds, now that something has broken."""
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
        return [0]  # the store lives there, and it does not answer
    return missing


def _named(missing: list[int]) -> str:
    return f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}"
