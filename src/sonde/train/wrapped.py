"""Gradient sums for models inside torch's own wrappers: DistributedDataParallel and FSDP2 (`fully_shard`).

Both overlap communication with backward by themselves; both average over ranks by default, and are told here to add. Their
collectives are tied to forward and backward, so every rank must run every micro-batch, with an empty batch too, and an
out-of-memory on one rank cannot be agreed upon: it ends the run. Use `GradientSum` where that matters and the model fits.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from sonde.train.gradients import GradientSync, trainable


def _add(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """DistributedDataParallel's hook: the plain sum, where its own divides by the number of ranks."""
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.SUM, group=group, async_op=True)
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


@final
class DdpSum(GradientSync):
    """For a model in DistributedDataParallel."""

    runs_every_rank: ClassVar[bool] = True

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        model.register_comm_hook(model.process_group, _add)

    @override
    def micro_batch(self, number: int, *, is_last: bool) -> AbstractContextManager[None]:
        """Only the last one communicates; DistributedDataParallel decides that in forward."""
        return nullcontext() if is_last else self._model.no_sync()

    @override
    def finish(self) -> None:
        """Fill in what nobody used."""
        _fill_missing(self._model)


@final
class ShardedSum(GradientSync):
    """For a model under `fully_shard` (FSDP2): gradients are sharded, and so are their sums."""

    runs_every_rank: ClassVar[bool] = True

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    @override
    def micro_batch(self, number: int, *, is_last: bool) -> AbstractContextManager[None]:
        """Every backward reduces into the shards, which keeps memory small."""
        return nullcontext()

    @override
    def finish(self) -> None:
        """Fill in what nobody used."""
        _fill_missing(self._model)


def _fill_missing(model: nn.Module) -> None:
    for parameter in trainable(model):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
