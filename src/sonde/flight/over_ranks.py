"""What an update came to over all ranks: mean loss, tokens, gradient norm. One small exchange an update, none in a single process.

Every rank gets the same numbers, so every rank judges alike and an event needs no further agreement. Values on a device are copied in the
background where nobody waits for them.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from sonde import ranks
from sonde.flight.ring import Loss
from sonde.log.device import Copy, begin_copy


class Numbers(NamedTuple):
    """An update in numbers."""

    loss: float
    """The mean over the ranks."""
    own_loss: float
    """That of this rank."""
    num_tokens: int
    """Over all ranks."""
    grad_norm: float | None
    """The greatest that a rank has, which is the same on all unless something is wrong."""


@final
class Outcome:
    """The numbers, or the numbers on their way from a device."""

    def __init__(self, table: Sequence[Sequence[float]] | Copy, rank: int) -> None:
        self._table = table
        self._rank = rank

    def is_ready(self) -> bool:
        """Have they arrived?"""
        return not isinstance(self._table, Copy) or self._table.is_ready()

    def numbers(self) -> Numbers:
        """The numbers; waits for them when they have not arrived."""
        table: Any = self._table.value() if isinstance(self._table, Copy) else self._table
        norms = [norm for _, _, norm in table if not math.isnan(norm)]
        return Numbers(
            loss=math.fsum(row[0] for row in table) / len(table),
            own_loss=table[self._rank][0],
            num_tokens=int(sum(row[1] for row in table)),
            grad_norm=max(norms) if norms else None,
        )


def exchange(losses: Sequence[Loss], num_tokens: int, norm: Any, *, in_time: bool) -> Outcome:
    """Bring together what the ranks have of an update. Every rank must call it."""
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    first, device = losses[0], ranks.communication_device()
    mean: Any
    if is_late := isinstance(first, Tensor) and not in_time:
        device = first.device
        mean = torch.stack([torch.as_tensor(one).double().reshape(()) for one in losses]).mean()
    else:
        mean = sum(map(float, losses)) / len(losses)
    values = [mean, num_tokens, math.nan if norm is None else norm]
    row = torch.stack([torch.as_tensor(one, dtype=torch.float64, device=device).reshape(()) for one in values])
    table = _gathered(row) if ranks.world_size() > 1 else row[None]
    return Outcome(begin_copy(table) if is_late else table.tolist(), ranks.rank())


def _gathered(vector: Tensor) -> Tensor:
    rows = [torch.empty_like(vector) for _ in range(ranks.world_size())]
    dist.all_gather(rows, vector)
    return torch.stack(rows)
