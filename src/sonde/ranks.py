"""Communication between ranks: plain data as JSON, never pickled, and joint decisions.

Without an initialized `torch.distributed` there is one rank, and every call returns immediately.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sonde.errors import SondeError
from sonde.records.values import decode, encode


def world_size() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if dist.is_initialized() else 0


def communication_device() -> torch.device:
    """Return the device on which the backend expects its tensors."""
    if dist.is_initialized() and "nccl" in dist.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def gather(value: object, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return every rank's `value` (in `group`) in rank order, as plain JSON data. Every rank must call this."""
    if world_size() == 1:
        return [value]
    device = communication_device()
    payload = torch.frombuffer(bytearray(encode(value)), dtype=torch.uint8).to(device)
    length = torch.tensor([len(payload)], device=device)
    lengths = [torch.zeros_like(length) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, length, group=group)
    payloads = _gather_bytes(payload, [int(one) for one in lengths], group)
    return [decode(one.cpu().numpy().tobytes()) for one in payloads]


def _gather_bytes(own: Tensor | None, sizes: list[int], group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """Return the bytes of every rank, given their `sizes`. A rank without data passes None."""
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=communication_device())
    if own is not None:
        padded[: len(own)] = own
    parts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def gather_tensors(tensors: Mapping[str, Tensor] | None) -> dict[str, list[Tensor]]:
    """Return the named tensors of all ranks, as one list per name in rank order. Every rank must call this.

    Shapes may differ between ranks, names may not. A rank without tensors passes None; if no rank has any, the result
    is empty.
    """
    if world_size() == 1:
        return {name: [tensor] for name, tensor in (tensors or {}).items()}
    own = {name: tensor.to(communication_device()).contiguous() for name, tensor in (tensors or {}).items()}
    header = {name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in own.items()}
    headers = gather(header)
    names = next((list(one) for one in headers if one), [])
    gathered: dict[str, list[Tensor]] = {}
    for name in names:
        raw = own[name].reshape(-1).view(torch.uint8) if name in own else None
        kinds = [(getattr(torch, one[name][0]), one[name][1]) if one else None for one in headers]
        sizes = [math.prod(kind[1]) * kind[0].itemsize if kind else 0 for kind in kinds]
        parts = zip(_gather_bytes(raw, sizes), kinds, strict=True)
        gathered[name] = [part.clone().view(kind[0]).view(kind[1]) for part, kind in parts if kind]
    return gathered


def any_rank(flag: bool) -> bool:
    """Return whether `flag` is true on any rank. Every rank must call this, and all get the same answer."""
    if world_size() == 1:
        return flag
    answer = torch.tensor([float(flag)], device=communication_device())
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    return bool(answer.item())


def check_agreement(facts: Mapping[str, object]) -> None:
    """Raise on every rank if the ranks were started with different data, settings or code."""
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
