"""The ranks of a run talking to one another: plain data as JSON, never pickled, and one decision for all.

Without `torch.distributed` running there is one rank, and everything here answers at once.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from sonde.errors import SondeError
from sonde.records.values import decode, encode


def world_size() -> int:
    """The number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """This process's number among them."""
    return dist.get_rank() if dist.is_initialized() else 0


def communication_device() -> torch.device:
    """Where the backend wants its tensors."""
    if dist.is_initialized() and "nccl" in dist.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def gather(value: object) -> list[Any]:
    """The `value` of every rank, in rank order; plain data, as records/values.py spells it. Every rank must call it."""
    if world_size() == 1:
        return [value]
    device = communication_device()
    payload = torch.frombuffer(bytearray(encode(value)), dtype=torch.uint8).to(device)
    length = torch.tensor([len(payload)], device=device)
    lengths = [torch.zeros_like(length) for _ in range(world_size())]
    dist.all_gather(lengths, length)
    sizes = [int(one) for one in lengths]
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: len(payload)] = payload
    payloads = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(payloads, padded)
    return [decode(one[:size].cpu().numpy().tobytes()) for one, size in zip(payloads, sizes, strict=True)]


def any_rank(flag: bool) -> bool:
    """Is `flag` true on any rank? Every rank must ask at the same time, and gets the same answer."""
    if world_size() == 1:
        return flag
    answer = torch.tensor([float(flag)], device=communication_device())
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    return bool(answer.item())


def check_agreement(facts: Mapping[str, object]) -> None:
    """Raise on every rank when the ranks were started differently: with other data, settings or code."""
    of_ranks = gather(dict(facts))
    differing = [name for name in facts if any(other.get(name) != of_ranks[0].get(name) for other in of_ranks)]
    if not differing:
        return
    told = [
        f"{name} is " + ", ".join(f"{other.get(name)!r} on rank {number}" for number, other in enumerate(of_ranks))
        for name in differing
    ]
    raise SondeError(
        f"the ranks were not started alike: they differ in {', '.join(differing)}",
        cause="; ".join(told)[:2000],
        hint="start every rank with the same command, code and data",
    )
