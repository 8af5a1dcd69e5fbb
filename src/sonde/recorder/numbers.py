"""The numbers of an update over all ranks: one small exchange per update, none in a single process.

Every rank gets the same numbers, so every rank judges alike. A rank that does not know its loss,
because sonde failed there, still joins.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from sonde import ranks
from sonde.log.device import Copy, begin_copy
from sonde.recorder.update import Loss

Table: TypeAlias = list[list[float]] | Copy
"""For every rank: its mean loss, whether it knows it, its tokens and its gradient norm; or their
pending copy from a device.
"""


class UpdateNumbers(NamedTuple):
    """What an update came to."""

    loss: float | None
    """The mean loss over the ranks that know theirs; None if none does."""
    own_loss: float | None
    """The loss of this rank."""
    num_tokens: int
    """The number of tokens over all ranks."""
    grad_norm: float | None
    """The largest gradient norm of any rank, which is the same on all unless something is wrong.
    NaN if any is NaN; None if no rank knows it.
    """


def read_numbers(table: Table) -> UpdateNumbers:
    """Return the numbers of an update, waiting for them if necessary."""
    rows: Any = table.value() if isinstance(table, Copy) else table
    known = [loss for loss, is_known, _, _, _ in rows if is_known]
    own_loss, own_is_known, _, _, _ = rows[ranks.rank()]
    norms = [norm for _, _, _, norm, has_norm in rows if has_norm]
    grad_norm = None
    if norms:
        grad_norm = math.nan if any(math.isnan(norm) for norm in norms) else max(norms)
    return UpdateNumbers(
        loss=math.fsum(known) / len(known) if known else None,
        own_loss=own_loss if own_is_known else None,
        num_tokens=int(sum(row[2] for row in rows)),
        grad_norm=grad_norm,
    )


def exchange(losses: Sequence[Loss], num_tokens: int, norm: Any, *, in_time: bool) -> Table:
    """Exchange the numbers of an update between ranks. Every rank must call this.

    If not `in_time`, numbers on a device are on their way when this returns.
    """
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    first = losses[0] if losses else None
    is_late = isinstance(first, Tensor) and not in_time
    device = first.device if is_late and isinstance(first, Tensor) else ranks.communication_device()
    mean: Any = math.nan
    if is_late:
        mean = torch.stack([torch.as_tensor(loss).double().reshape(()) for loss in losses]).mean()
    elif losses:
        mean = sum(map(float, losses)) / len(losses)
    values = [mean, bool(losses), num_tokens, math.nan if norm is None else norm, norm is not None]
    row = torch.stack(
        [torch.as_tensor(value, dtype=torch.float64, device=device).reshape(()) for value in values]
    )
    table = row[None]
    if ranks.world_size() > 1:
        rows = [torch.empty_like(row) for _ in range(ranks.world_size())]
        dist.all_gather(rows, row)
        table = torch.stack(rows)
    return begin_copy(table) if is_late else table.tolist()
