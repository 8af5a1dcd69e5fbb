"""Sum gradients over ranks: the sum of d(loss_sum) over ranks and micro-batches, divided once by
the total weight.

Averaging per rank, as DistributedDataParallel does, is wrong when ranks hold different numbers of
target tokens: a token on a rank with few tokens would count for more. Here every token counts the
same, whatever its rank and micro-batch.

A `GradientSync` is notified when forward and backward of each micro-batch begin and end, and then
asked to `finish`. Afterwards the `.grad` of every parameter is the sum over all micro-batches of
all ranks. `choose_sync` picks one of four kinds by the model's wrapper: `GradientSum` and
`OrderedGradientSum` for replicated parameters, `DdpSum` and `ShardedSum` for models inside torch's
own wrappers. The wrappers overlap communication with backward themselves. Both average over ranks
by default and are configured here to sum. Their collectives are tied to forward and backward, so
every rank must run every micro-batch, even an empty one, and an out-of-memory error on one rank
ends the run. Use `GradientSum` where that matters and the model fits.

`GradientSum` reduces replicated parameters over c10d while backward is still running. Parameters
are split into buckets in reverse order of registration, and a bucket is sent as soon as its
gradients are complete. Buckets are sent in the same order on every rank, and `finish` sends zeros
for what a rank did not compute (an empty batch, an out-of-memory error during backward), so ranks
never wait for one another forever.

A parameter that no rank used gets a zero gradient, on one process as on many, so that both stay
equal.
"""

from abc import ABC
from binascii import crc32
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from sonde import ranks
from sonde.errors import SettingError
from sonde.train.settings import TrainerSettings

_BUCKET_BYTES: Final = 25 * 1024 * 1024


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters, each once, in order of registration."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class GradientSync(ABC):  # noqa: B024  each kind overrides what it needs to know
    """Sums gradients over micro-batches and ranks."""

    runs_every_rank: ClassVar[bool] = False
    """Whether every rank must run forward and backward equally often, even on an empty batch."""
    is_alone: bool = False
    """Whether there are no other ranks, so that a single micro-batch may be the whole sum."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)

    def begin(self, *, is_last: bool) -> None:  # noqa: B027  some kinds need not know
        """Called before the forward pass of a micro-batch; `is_last` if it is this rank's last one
        in the update.
        """

    def end(self, number: int) -> None:  # noqa: B027  most kinds need not know
        """Called after the backward pass of the micro-batch with this number in the update."""

    def finish(self) -> None:
        """Complete the sum, so that every parameter's `.grad` is final. Unused parameters get a
        zero gradient.
        """
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def close(self) -> None:  # noqa: B027  most kinds hold nothing
        """Release the model."""


class GradientSum(GradientSync):
    """Sums the gradients of replicated parameters over the ranks, overlapping with backward."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, bucket_bytes: int = _BUCKET_BYTES
    ) -> None:
        super().__init__(parameters)
        self.is_alone = ranks.world_size() == 1
        self._buckets = [] if self.is_alone else _cut_into_buckets(self._parameters, bucket_bytes)
        self._missing = [len(bucket) for bucket in self._buckets]
        """How many gradients each bucket still waits for."""
        self._sent: list[tuple[Tensor, Any]] = []
        self._armed = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, number))
            for number, bucket in enumerate(self._buckets)
            for parameter in bucket
        ]

    def begin(self, *, is_last: bool) -> None:
        """Send buckets as they fill up, during the backward pass of this rank's last
        micro-batch.
        """
        self._armed = is_last

    def finish(self) -> None:
        """Send the remaining buckets, wait for all, and write the sums to the parameters'
        `.grad`.
        """
        super().finish()
        if self.is_alone:
            return
        self._armed = False
        self._missing = [0] * len(self._buckets)
        self._send()
        for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
            work.wait()
            sums = flat.split([parameter.numel() for parameter in bucket])
            for parameter, total in zip(bucket, sums, strict=True):
                parameter.grad = total.view_as(parameter)
        self._sent.clear()
        self._missing = [len(bucket) for bucket in self._buckets]

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _on_gradient(self, number: int, parameter: Tensor) -> None:  # noqa: ARG002  torch passes it
        if self._armed:
            self._missing[number] -= 1
            self._send()

    def _send(self) -> None:
        """Send the buckets that are complete, up to the first one that is not."""
        while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
            bucket = self._buckets[len(self._sent)]
            flat = torch.cat(
                [parameter.grad.flatten() for parameter in bucket if parameter.grad is not None]
            )
            self._sent.append((flat, dist.all_reduce(flat, async_op=True)))


class OrderedGradientSum(GradientSync):
    """Sums gradients micro-batch by micro-batch in a fixed order, so that 1, 2 and 4 ranks are
    bitwise equal.

    Floating-point addition is not associative, and the usual all-reduce adds in an order that
    depends on the number of ranks. Here each micro-batch has its own row, filled by exactly one
    rank (adding zeros is exact), and the rows are then added in the order of their global numbers.
    Costs the memory and traffic of one set of gradients per micro-batch.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], num_micro_batches: int) -> None:
        super().__init__(parameters)
        self._rows = [
            torch.zeros(num_micro_batches, *p.shape, dtype=p.dtype, device=p.device)
            for p in self._parameters
        ]

    def end(self, number: int) -> None:
        """Move the gradients into the row of this micro-batch."""
        for parameter, rows in zip(self._parameters, self._rows, strict=True):
            if parameter.grad is not None:
                rows[number].copy_(parameter.grad)
                parameter.grad = None

    def finish(self) -> None:
        """Write the ordered sum over all micro-batches of all ranks to the parameters' `.grad`, and
        clear the rows.
        """
        if ranks.world_size() > 1:
            works = [dist.all_reduce(rows, async_op=True) for rows in self._rows]
            for work in works:
                work.wait()
        for parameter, rows in zip(self._parameters, self._rows, strict=True):
            total = rows[0].clone()
            for row in rows[1:]:
                total += row
            parameter.grad = total
            rows.zero_()


# torch checks the annotation
def _add(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """Communication hook for DistributedDataParallel that sums, where the default one averages over
    ranks.
    """
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.SUM, group=group, async_op=True)
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


class DdpSum(GradientSync):
    """Sums gradients of a model in DistributedDataParallel."""

    runs_every_rank: ClassVar[bool] = True

    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(trainable(model))
        self._model = model
        model.register_comm_hook(model.process_group, _add)

    def begin(self, *, is_last: bool) -> None:
        """Communicate only for the last micro-batch. DistributedDataParallel reads this flag in
        forward (as `no_sync` does).
        """
        self._model.require_backward_grad_sync = is_last


class ShardedSum(GradientSync):
    """Sums gradients of a model under `fully_shard` (FSDP2). The sums are sharded like the
    gradients.

    Every backward pass reduces into the shards, which keeps memory small.
    """

    runs_every_rank: ClassVar[bool] = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(trainable(model))
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)


def _cut_into_buckets(
    parameters: list[nn.Parameter], bucket_bytes: int
) -> list[list[nn.Parameter]]:
    """Split the parameters into buckets of one dtype and device, starting with the last
    parameters.
    """
    buckets: list[list[nn.Parameter]] = []
    size = 0
    kind = None
    for parameter in reversed(parameters):
        size += parameter.nbytes
        if size > bucket_bytes or kind != (parameter.dtype, parameter.device):
            buckets.append([])
            size = parameter.nbytes
            kind = (parameter.dtype, parameter.device)
        buckets[-1].append(parameter)
    return buckets


def check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise if the optimizer lacks a trainable parameter, which would silently never be updated."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    named = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    if not named:
        raise SettingError("the model has no parameter that requires a gradient")
    missing = [name for name, parameter in named if id(parameter) not in held]
    if missing:
        raise SettingError(
            f"the optimizer does not hold {len(missing)} of the model's {len(named)} parameters:"
            f" {', '.join(missing[:10])}",
            cause="they were created after it, or left out of its parameter groups",
            hint=(
                "build the optimizer from model.parameters() last, or freeze them with"
                " requires_grad_(False)"
            ),
        )


def describe_shapes(model: nn.Module) -> str:
    """Summarise the parameters in a string that differs for other shapes, so that mismatched ranks
    are refused early.
    """
    shapes = [
        f"{name} {list(parameter.shape)} {parameter.dtype}"
        for name, parameter in model.named_parameters()
    ]
    num_values = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{num_values:,} values in {len(shapes)} tensors, shapes"
        f" {crc32(' '.join(shapes).encode()):08x}"
    )


def choose_sync(model: nn.Module, settings: TrainerSettings) -> GradientSync:
    """Choose how gradients are summed: by the model's wrapper, in fixed order if requested, else as
    a plain sum.
    """
    is_wrapped = isinstance(model, (DistributedDataParallel, FSDPModule))
    if settings.ordered and is_wrapped:
        raise SettingError(
            f"ordered sums need replicated parameters, not {type(model).__name__}",
            hint="train the bare model with ordered=True, or the wrapped one without",
        )
    if isinstance(model, DistributedDataParallel):
        return DdpSum(model)
    if isinstance(model, FSDPModule):
        return ShardedSum(model)
    if settings.ordered:
        return OrderedGradientSum(trainable(model), settings.update_freq * ranks.world_size())
    return GradientSum(trainable(model))
