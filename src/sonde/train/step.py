"""One update: forward and backward over micro-batches and ranks, one division by the total weight, clip, step.

    sum over ranks and micro-batches of d(loss_sum)  /  sum over ranks and micro-batches of weight

Two ranks with unequal tokens, one process with the whole batch, and gradient accumulation all give this same number. The
ranks exchange their weights, losses and troubles in one small all-reduce, so they agree on what happens next: an update
is skipped on all of them, and counted, when a rank ran out of memory or the gradients are not finite.

An update that is one micro-batch of one process knows its weight before backward, which then starts from 1/weight instead of 1: no pass
over the gradients is left to do unless they are clipped.

Random numbers follow from (seed, update, micro-batch) and from nothing else: before each micro-batch the generators are seeded anew, so dropout is the
same on any number of ranks, and a resumed run needs no generator state to go on bit for bit. Costs about 2 µs on CPU.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from sonde.train.gradients import GradientSync, trainable
from sonde.train.optimizer_step import OptimizerStep
from sonde.train.settings import Precision, TrainerSettings
from sonde.train.task import StepOutput, Task, as_output

_CLIP_EPSILON: Final = 1e-6
"""As in torch: a norm a hair above the limit is not clipped to exactly it."""
_PRECISE: Final = (torch.float32, torch.float64)
"""Types of a loss in which 1/weight is as exact as the gradients are asked to be."""
_ENGINE: Final[Any] = torch.autograd.Variable._execution_engine
_MASK: Final = (1 << 64) - 1
_GROWTH_UPDATES: Final = 2000
_MAX_SCALE: Final = 2.0**24


def mix(*numbers: int) -> int:
    """One well-mixed 63-bit number from several: the finaliser of SplitMix64, folded over them."""
    state = 0
    for number in numbers:
        state = (state + 0x9E3779B97F4A7C15 + (number & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def seed_generators(seed: int, update: int, micro_batch: int) -> None:
    """Seed torch's default generators for one micro-batch, on the CPU and on the current device."""
    mixed = mix(seed, update, micro_batch)
    torch.default_generator.manual_seed(mixed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(mixed)


@final
@dataclass(slots=True)
class StepResult:
    """What one update did."""

    loss: float = 0.0
    """Mean loss per target token, over all ranks; NaN when there were none."""
    weight: float = 0.0
    """Target tokens, over all ranks."""
    grad_norm: float | None = None
    """Global gradient norm before clipping; None when the update never got that far."""
    skipped: str | None = None
    """Why the weights did not move; None when they did."""
    stop_wanted: bool = False
    """Does any rank want to stop?"""
    outputs: list[StepOutput] = field(default_factory=list)
    """What the task gave on this rank, micro-batch by micro-batch."""
    forward_seconds: float = 0.0
    """Forward and loss."""
    backward_seconds: float = 0.0
    """Backward, with what communication it could not hide."""
    optimizer_seconds: float = 0.0
    """Clipping and the optimiser."""
    mean_factor: float = 1.0
    """Turns gradients as backward gave them into those of the mean loss; 1 when it started from there."""

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.forward_seconds + self.backward_seconds + self.optimizer_seconds

    def shown(self) -> dict[str, Any]:
        """What callbacks see of it."""
        outputs = self.outputs
        return {
            "weight": self.weight,
            "grad_norm": self.grad_norm,
            "tensors": {"loss": self.loss, **(outputs[-1].tensors if outputs else {})},
            "sample_ids": [sample for output in outputs for sample in output.sample_ids],
            "sample_losses": [output.sample_losses for output in outputs],
            "token_losses": [output.token_losses for output in outputs],
            "token_counts": [output.token_counts for output in outputs],
        }


@final
class LossScale:
    """The loss scale of float16 training: as large as the gradients allow, decided the same on all ranks; 1 and fixed unless `dynamic`.

    Small gradients vanish in float16, so the loss is multiplied before backward and the gradients are divided after it. The scale
    halves when the global gradient norm is not finite (that update is skipped) and doubles after 2000 good updates.
    """

    def __init__(self, *, dynamic: bool) -> None:
        self.is_dynamic = dynamic
        self.value = 2.0**16 if dynamic else 1.0
        self._num_good = 0

    def update(self, *, finite: bool) -> None:
        """Take in whether the gradients of an update were finite."""
        if not self.is_dynamic:
            return
        if not finite:
            self.value = max(self.value / 2, 2.0**-14)
            self._num_good = 0
            return
        self._num_good += 1
        if self._num_good == _GROWTH_UPDATES:
            self.value = min(self.value * 2, _MAX_SCALE)
            self._num_good = 0

    def state_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"value": self.value, "num_good": self._num_good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back from plain data."""
        self.value, self._num_good = state["value"], state["num_good"]


@final
class UpdateStep:
    """Makes updates to one model with one optimiser."""

    def __init__(
        self, task: Task, optimizer: torch.optim.Optimizer, sync: GradientSync, settings: TrainerSettings
    ) -> None:
        self._task = task
        self._optimizer = optimizer
        self._sync = sync
        self._settings = settings
        self._parameters = trainable(task.model)
        self._device = self._parameters[0].device
        self._are_local = all(p.is_cpu and not isinstance(p, DTensor) for p in self._parameters)
        self._optimizer_step = OptimizerStep(optimizer)
        self._autocast = _autocast(self._device.type, settings.precision)
        self.scale = LossScale(dynamic=settings.precision == "float16")
        self._is_divided = False  # are the gradients of this update divided by its weight already?

    def run(
        self,
        update: int,
        micro_batches: Sequence[tuple[int, Any]],
        *,
        wants_stop: bool = False,
        on_gradients: Callable[[float], None] | None = None,
    ) -> StepResult:
        """Make the update with this 0-based number from this rank's share of its micro-batches, each with its number.

        `wants_stop` is told to all ranks along the way. `on_gradients(norm)` is called when the gradients are final, before
        the optimiser moves.
        """
        result = StepResult()
        for group in self._optimizer.param_groups:  # what zero_grad does, without its profiler's marks
            for parameter in group["params"]:
                parameter.grad = None
        self._is_divided = False
        out_of_memory = not self._compute(update, micro_batches, result)
        started = time.perf_counter()
        # In this order on every rank: buckets may have left during backward, and collectives must not cross.
        self._sync.finish()
        loss_sum, weight, num_out_of_memory, num_stops = self._agree(result.outputs, out_of_memory, wants_stop)
        finished = time.perf_counter()
        result.backward_seconds += finished - started
        result.weight = weight
        result.stop_wanted = num_stops > 0
        result.loss = loss_sum / weight if weight else float("nan")
        if num_out_of_memory:
            result.skipped = f"out of memory on {num_out_of_memory:.0f} ranks"
        elif not weight:
            result.skipped = "no target tokens"
        else:
            self._move(weight, result, on_gradients)
        result.optimizer_seconds = time.perf_counter() - finished
        return result

    def _compute(self, update: int, micro_batches: Sequence[tuple[int, Any]], result: StepResult) -> bool:
        """Forward and backward of this rank's micro-batches; False when memory ran out."""
        last = len(micro_batches) - 1
        for position, (number, batch) in enumerate(micro_batches):
            seed_generators(self._settings.seed, update, number)
            started = time.perf_counter()
            try:
                with self._sync.micro_batch(number, is_last=position == last):
                    with self._autocast:
                        output = as_output(self._task.compute(batch))
                    forwarded = time.perf_counter()
                    self._backward(output, is_whole=last == 0 and self._sync.is_alone)
            except torch.OutOfMemoryError:
                if self._sync.runs_every_rank:
                    raise  # this rank's peers wait inside a collective that we cannot join: let the run end
                result.outputs.clear()
                return False
            result.outputs.append(output)
            result.forward_seconds += forwarded - started
            result.backward_seconds += time.perf_counter() - forwarded
        return True

    def _backward(self, output: StepOutput, *, is_whole: bool) -> None:
        """Backward of one micro-batch; `is_whole` when no other is part of the update."""
        loss_sum = output.loss_sum
        self._is_divided = is_whole and not self.scale.is_dynamic and loss_sum.dtype in _PRECISE and _is_known(output)
        start = 1.0 / float(output.weight) if self._is_divided else self.scale.value
        run_backward(loss_sum, torch.full_like(loss_sum, start))

    def _agree(self, outputs: list[StepOutput], out_of_memory: bool, wants_stop: bool) -> list[float]:
        """Sums over all ranks of the losses, the weights, the out-of-memories and the wishes to stop."""
        # Read after backward was issued, so a device is waited for once, when nothing else is left to do.
        own = [
            sum([output.loss_sum.item() for output in outputs]),
            sum([float(output.weight) for output in outputs]),
            float(out_of_memory),
            float(wants_stop),
        ]
        if not dist.is_initialized():
            return own
        report = torch.tensor(own, dtype=torch.float64, device=self._device)
        dist.all_reduce(report)
        agreed: list[float] = report.tolist()
        return agreed

    def _move(self, weight: float, result: StepResult, on_gradients: Callable[[float], None] | None) -> None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        factor = result.mean_factor = 1.0 if self._is_divided else 1.0 / (weight * self.scale.value)
        norm = result.grad_norm = _total_norm(gradients, are_local=self._are_local) * factor
        finite = norm < math.inf
        self.scale.update(finite=finite)
        if not finite:
            result.skipped = f"the gradient norm is {norm}"
            return
        clip_norm = self._settings.clip_norm
        if clip_norm is not None and norm > clip_norm:
            factor *= clip_norm / (norm + _CLIP_EPSILON)
        if factor != 1.0:  # one pass over the gradients divides, unscales and clips
            torch._foreach_mul_(gradients, factor)
        if on_gradients is not None:
            on_gradients(norm)
        self._optimizer_step.take()


def run_backward(loss: Tensor, gradient: Tensor) -> None:
    """`loss.backward(gradient)`, where `gradient` is like `loss` in every way.

    For a plain tensor on the CPU the engine is called as torch calls it, without the checks on the way there, which cannot
    fail here. With the wrapper of the optimiser's step (optimizer_step.py) they cost a small model 90 µs an update, half of a bare loop.
    """
    if type(loss) is Tensor and loss.is_cpu:
        _ENGINE.run_backward((loss,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)
    else:
        loss.backward(gradient)


def _autocast(device_type: str, precision: Precision) -> AbstractContextManager[Any]:
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device_type, dtype=getattr(torch, precision))


def _is_known(output: StepOutput) -> bool:
    """Is its weight a number above 0 that can be had without waiting for a device?"""
    weight = output.weight
    return (not isinstance(weight, Tensor) or weight.is_cpu) and bool(weight > 0)


def _total_norm(gradients: list[Tensor], *, are_local: bool) -> float:
    """The norm of all gradients together, read once; that of sharded ones is summed over the ranks."""
    if are_local:
        # On the CPU nothing waits for a device: adding up plain numbers costs a third of doing it with tensors.
        return math.hypot(*[norm.item() for norm in torch._foreach_norm(gradients)])
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor().item() if isinstance(norm, DTensor) else norm.item()
