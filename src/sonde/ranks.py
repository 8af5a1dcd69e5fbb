"""The ranks of a run: joining them, plain data between them as JSON, never pickled, and joint
decisions.

Without an initialized `torch.distributed` there is one rank, and every call returns immediately.

    # `cuda:LOCAL_RANK` with nccl, else the CPU with gloo
    with process_group(timeout_seconds=600) as device:
        with missing_ranks_named():
            …

joins the group that torchrun's environment describes. When a collective fails (a peer died, or
exceeded the timeout), the remaining ranks sign in at the store, and the error names those that did
not.
"""

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from sonde.errors import SondeError
from sonde.records.values import decode, encode

_SIGN_IN_SECONDS: Final = 5.0
_ASK_SECONDS: Final = 0.1
_numbers: Final = itertools.count()


def world_size() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if dist.is_initialized() else 0


def communication_device(group: dist.ProcessGroup | None = None) -> torch.device:
    """Return the device on which the backend (of `group`) expects its tensors."""
    if dist.is_initialized() and "nccl" in dist.get_backend(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def gather(value: object, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return every rank's `value` in rank order, as plain JSON data. Every rank must call this.

    A `group` is asked itself, not through torch's list of groups: a script may destroy that while a
    thread still writes.
    """
    if group is None and world_size() == 1:
        return [value]
    device = communication_device(group)
    payload = torch.frombuffer(bytearray(encode(value)), dtype=torch.uint8).to(device)
    length = torch.tensor([len(payload)], device=device)
    lengths = _all_gather(length, group)
    payloads = _gather_bytes(payload, [int(size) for size in lengths], group)
    return [decode(sent.cpu().numpy().tobytes()) for sent in payloads]


def _gather_bytes(
    own: Tensor | None, sizes: list[int], group: dist.ProcessGroup | None = None
) -> list[Tensor]:
    """Return the bytes of every rank, given their `sizes`. A rank without data passes None."""
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=communication_device(group))
    if own is not None:
        padded[: len(own)] = own
    return [part[:size] for part, size in zip(_all_gather(padded, group), sizes, strict=True)]


def _all_gather(own: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    members = group or dist.group.WORLD
    assert members is not None, "there are several ranks"
    parts = [torch.zeros_like(own) for _ in range(members.size())]
    members.allgather([parts], [own]).wait()
    return parts


def gather_tensors(tensors: Mapping[str, Tensor] | None) -> dict[str, list[Tensor]]:
    """Return the named tensors of all ranks, as one list per name in rank order. Every rank must
    call this.

    Shapes may differ between ranks, names may not. A rank without tensors passes None; if no rank
    has any, the result is empty.
    """
    own = tensors or {}
    if world_size() == 1:
        return {name: [tensor] for name, tensor in own.items()}
    device = communication_device()
    own = {name: tensor.to(device).contiguous() for name, tensor in own.items()}
    form_of = {
        name: (str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        for name, tensor in own.items()
    }
    forms_of_ranks: list[dict[str, Any]] = gather(form_of)
    names = next((list(forms) for forms in forms_of_ranks if forms), [])
    gathered: dict[str, list[Tensor]] = {}
    for name in names:
        forms = [_Form.read(forms[name]) if forms else _NO_TENSOR for forms in forms_of_ranks]
        raw = own[name].reshape(-1).view(torch.uint8) if name in own else None
        received = _gather_bytes(raw, [form.num_bytes for form in forms])
        gathered[name] = [
            part.clone().view(form.dtype).view(form.shape)
            for part, form in zip(received, forms, strict=True)
            if form is not _NO_TENSOR
        ]
    return gathered


class _Form(NamedTuple):
    """What a rank must know to make a tensor of another rank's bytes."""

    dtype: torch.dtype
    shape: list[int]

    @classmethod
    def read(cls, sent: Sequence[Any]) -> "_Form":
        """Read what a rank sent: the name of the dtype, and the shape."""
        dtype, shape = sent
        return cls(getattr(torch, dtype), shape)

    @property
    def num_bytes(self) -> int:
        """The size of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


_NO_TENSOR: Final = _Form(torch.uint8, [0])
"""The form of a rank that has no tensors."""


def any_rank(flag: bool) -> bool:
    """Return whether `flag` is true on any rank. Every rank must call this, and all get the same
    answer.
    """
    if world_size() == 1:
        return flag
    answer = torch.tensor([float(flag)], device=communication_device())
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    return bool(answer.item())


def check_agreement(facts: Mapping[str, object]) -> None:
    """Raise on every rank if the ranks were started with different data, settings or code."""
    of_ranks = gather(dict(facts))
    differing = [
        name
        for name in facts
        if any(other.get(name) != of_ranks[0].get(name) for other in of_ranks)
    ]
    if not differing:
        return
    sentences = [
        f"{name} is "
        + ", ".join(
            f"{other.get(name)!r} on rank {number}" for number, other in enumerate(of_ranks)
        )
        for name in differing
    ]
    raise SondeError(
        f"the ranks were not started alike: they differ in {', '.join(differing)}",
        cause="; ".join(sentences)[:2000],
        hint="start every rank with the same command, code and data",
    )


@contextmanager
def process_group(*, timeout_seconds: float) -> Iterator[torch.device]:
    """Yield this rank's device and keep the process group open for the block. Nested blocks share
    the outer group.
    """
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
    """When a collective fails inside the block, name the missing ranks in the error. Other errors
    pass unchanged.
    """
    try:
        yield
    except RuntimeError as error:
        missing = _missing_ranks() if _is_of_a_collective(error) else []
        if not missing:
            raise
        lost = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}"
        raise SondeError(
            f"rank {rank()} lost {lost} of {world_size()}",
            cause=str(error).splitlines()[0],
            hint=(
                "look at what that rank said last; started again, the run goes on from its last"
                " checkpoint"
            ),
        ) from error


def found_by_rank_0(find: Callable[[], Any]) -> Any:
    """Run `find` on rank 0 and return its result, as plain data, on every rank. Every rank must
    call it.

    The other ranks poll the store, so no collective can time out however long it takes. If rank 0
    raises, all ranks do.
    """
    if world_size() == 1:
        return find()
    store = _default_store()
    key = f"sonde/found/{next(_numbers)}"
    if rank() == 0:
        try:
            answer: Any = {"found": find()}
        except SondeError as error:
            answer = {"error": [error.message, error.cause, error.hint]}
        store.set(key, encode(answer))
    else:
        while not store.check([key]):
            time.sleep(_ASK_SECONDS)
        answer = decode(store.get(key))
    any_rank(False)  # the store may live on rank 0, which must stay until all have read it
    if "error" in answer:
        message, cause, hint = answer["error"]
        raise SondeError(message, cause=cause, hint=hint)
    return answer["found"]


def _default_store() -> Any:
    """Return the key-value store that all ranks share."""
    # torch creates it in init_process_group and has no public name for it.
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001


def _is_of_a_collective(error: RuntimeError) -> bool:
    """Return whether a collective raised the error. Gloo's errors have no type of their own, only
    typical texts.
    """
    is_of_gloo = any(sign in str(error) for sign in ("gloo", "pair closure"))
    return dist.is_initialized() and (isinstance(error, dist.DistError) or is_of_gloo)


def _missing_ranks() -> list[int]:
    """Return the ranks that do not sign in within a few seconds after a failure."""
    world = world_size()
    try:
        store = _default_store()
        store.set(f"sonde/broken/{rank()}", "here")
        deadline = time.monotonic() + _SIGN_IN_SECONDS
        missing = list(range(world))
        while missing and time.monotonic() < deadline:
            missing = [rank for rank in missing if not store.check([f"sonde/broken/{rank}"])]
            time.sleep(0.05)
    except RuntimeError:
        return [0]  # the store lives on rank 0 and does not answer
    return missing
