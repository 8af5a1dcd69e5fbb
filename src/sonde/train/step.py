"""One update: its learning rate, forward and backward over micro-batches and ranks, one division by the total weight, clipping, optimizer step.

    sum over ranks and micro-batches of d(loss_sum)  /  sum over ranks and micro-batches of weight

Two ranks with unequal tokens, one process with the whole batch, and gradient accumulation all give this same gradient.
The ranks exchange their weights, losses and failures in one small all-reduce, so they agree on what happens next. If a
rank ran out of memory or the gradients are not finite, all ranks skip the update and count it.

If an update is one micro-batch of one process, its weight is known before backward, which then starts from 1/weight
instead of 1. No extra pass over the gradients is needed unless they are clipped.

Random numbers depend only on (seed, update, micro-batch): the generators are reseeded before each micro-batch, so
dropout is the same on any number of ranks, and a resumed run needs no generator state to continue bit for bit. Costs
about 2 µs on CPU.

torch wraps every optimizer's `step` to open a profiler range and to call hooks, which is more than half of the cost of
a step of a small model. The wrapper is bypassed only where this makes no difference: no profiler is running, no hook is
registered (on this optimizer or globally), and `step` was not replaced on the object, as torch's own schedulers do.

The learning rate comes from a `Schedule`, a function of the 0-based update number, or a torch scheduler, which is
stepped after every update (`ReduceLROnPlateau` after every evaluation, with the metric). A torch scheduler may give each
parameter group its own rate, and its state is part of the checkpoint. The other two are stateless.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import optimizer as torch_optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sonde.errors import SettingError
from sonde.train.determinism import seed_generators
from sonde.train.gradients import GradientSync, trainable
from sonde.train.schedule import Plateau, Schedule
from sonde.train.settings import TrainerSettings
from sonde.train.stopping import StopWhen
from sonde.train.task import StepOutput, Task, as_output

_CLIP_EPSILON: Final = 1e-6
"""Same value as in torch. A norm just above the limit is not clipped to exactly the limit."""
_PRECISE: Final = (torch.float32, torch.float64)
"""Dtypes of a loss in which 1/weight is as exact as the gradients need to be."""
_ENGINE: Final[Any] = torch.autograd.Variable._execution_engine
_GROWTH_UPDATES: Final = 2000
_MAX_SCALE: Final = 2.0**24


AnySchedule: TypeAlias = Schedule | LRScheduler | Callable[[int], float]
"""The kinds of schedule that a trainer accepts."""


class Rates:
    """The learning rates of a training run."""

    def __init__(self, schedule: AnySchedule, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._schedule = schedule if isinstance(schedule, Schedule) else None
        self.scheduler = schedule if isinstance(schedule, LRScheduler) else None
        """The torch scheduler, whose state is saved in checkpoints; None if the rate is a function of the update."""
        self.plateau: Plateau | None = None
        """Scales the rate when evaluations stop improving."""
        if self.scheduler is None and self._schedule is None and not callable(schedule):
            raise SettingError(
                f"schedule is a {type(schedule).__name__}",
                hint="give a Schedule, a function of the update's number, or a scheduler of torch.optim.lr_scheduler",
            )
        if self.scheduler is not None and self.scheduler.optimizer is not optimizer:
            raise SettingError("the scheduler belongs to another optimiser than the trainer's")
        self._function: Callable[[int], float] = schedule.rate if isinstance(schedule, Schedule) else schedule  # type: ignore[assignment]  # not called where there is a scheduler

    def check(self, stop: StopWhen) -> None:
        """Raise on combinations that do not work together."""
        if self._schedule is not None:
            stop.check_peak_lr(self._schedule.lr)
        if self.scheduler is not None and self.plateau is not None:
            raise SettingError("a torch scheduler goes without trainer.plateau", hint="use ReduceLROnPlateau")

    def past_peak(self, update: int) -> bool:
        """Return whether the warm-up is over, so that a low rate means the end of the schedule."""
        return update >= (1 if self._schedule is None else self._schedule.warmup)

    def lr(self, update: int) -> float:
        """Return the rate of the next update, whose 0-based number is `update`."""
        if self.scheduler is not None:
            return float(self._optimizer.param_groups[0]["lr"])
        return self._function(update) * (self.plateau.scale if self.plateau else 1.0)

    def apply(self, update: int) -> float:
        """Set the rate in the optimizer before the update, and return it."""
        lr = self.lr(update)
        if self.scheduler is None:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
        return lr

    def after_update(self) -> None:
        """Step the torch scheduler after an update, if there is one."""
        if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau):
            with warnings.catch_warnings():
                # torch looks for calls of optimizer.step, which the trainer makes in its own way.
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                self.scheduler.step()

    def after_evaluation(self, value: float) -> None:
        """Pass the metric of an evaluation to the plateau or scheduler."""
        if self.plateau is not None:
            self.plateau.observe(value)
        elif isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(value)


@dataclass(slots=True)
class StepResult:
    """The result of one update."""

    loss: float = 0.0
    """Mean loss per target token, over all ranks; NaN if there were no tokens."""
    weight: float = 0.0
    """Number of target tokens, over all ranks."""
    grad_norm: float | None = None
    """Global gradient norm before clipping; None if the update did not get that far."""
    skipped: str | None = None
    """Why the weights were not updated; None if they were."""
    stop_wanted: bool = False
    """Whether any rank wants to stop."""
    outputs: list[StepOutput] = field(default_factory=list)
    """The task's outputs on this rank, one per micro-batch."""
    forward_seconds: float = 0.0
    """Seconds for the forward pass and the loss."""
    backward_seconds: float = 0.0
    """Seconds for the backward pass, including communication that did not overlap with it."""
    optimizer_seconds: float = 0.0
    """Seconds for clipping and the optimizer."""
    mean_factor: float = 1.0
    """Factor that turns the gradients of backward into those of the mean loss; 1 if they already are."""


class LossScale:
    """The loss scale of float16 training, the same on all ranks. Fixed at 1 unless `dynamic`.

    Small gradients underflow in float16, so the loss is multiplied before backward and the gradients are divided after
    it. The scale halves when the global gradient norm is not finite (that update is skipped) and doubles after 2000
    good updates.
    """

    def __init__(self, *, dynamic: bool) -> None:
        self.is_dynamic = dynamic
        self.value = 2.0**16 if dynamic else 1.0
        self._num_good = 0

    def update(self, *, finite: bool) -> None:
        """Adjust a dynamic scale after an update; `finite` says whether its gradients were finite."""
        if not finite:
            self.value = max(self.value / 2, 2.0**-14)
            self._num_good = 0
            return
        self._num_good += 1
        if self._num_good == _GROWTH_UPDATES:
            self.value = min(self.value * 2, _MAX_SCALE)
            self._num_good = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {"value": self.value, "num_good": self._num_good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self.value, self._num_good = state["value"], state["num_good"]


class UpdateStep:
    """Makes updates to one model with one optimizer."""

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
        self._take_step = optimizer_step(optimizer)
        self._autocast: Any = nullcontext()
        if settings.precision != "float32":
            self._autocast = torch.autocast(self._device.type, dtype=getattr(torch, settings.precision))
        self._is_distributed = dist.is_initialized()
        self.scale = LossScale(dynamic=settings.precision == "float16")
        self._is_divided = False  # whether the gradients of this update are already divided by its weight

    def run(
        self,
        update: int,
        micro_batches: Sequence[tuple[int, Any]],
        *,
        wants_stop: bool = False,
        on_gradients: Callable[[float], None] | None = None,
    ) -> StepResult:
        """Make the update with this 0-based number from this rank's `(number, batch)` micro-batches.

        `wants_stop` is shared with all ranks. `on_gradients(norm)` is called when the gradients are final, before the
        optimizer step.
        """
        result = StepResult()
        for group in self._optimizer.param_groups:  # same as zero_grad, without its profiler range
            for parameter in group["params"]:
                parameter.grad = None
        self._is_divided = False
        out_of_memory = not self._compute(update, micro_batches, result)
        started = time.perf_counter()
        # In this order on every rank: buckets may have been sent during backward, and collectives must not cross.
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

    def forward(self, update: int, number: int, batch: Any) -> StepOutput:
        """Compute the loss of micro-batch `number` of an update, with its random numbers and in the settings' precision."""
        seed_generators(self._settings.seed, update, number)
        with self._autocast:
            return as_output(self._task.compute(batch))

    def _compute(self, update: int, micro_batches: Sequence[tuple[int, Any]], result: StepResult) -> bool:
        """Run forward and backward of this rank's micro-batches; returns False if memory ran out."""
        last = len(micro_batches) - 1
        for position, (number, batch) in enumerate(micro_batches):
            started = time.perf_counter()
            try:
                self._sync.begin(is_last=position == last)
                output = self.forward(update, number, batch)
                forwarded = time.perf_counter()
                self._backward(output, is_whole=last == 0 and self._sync.is_alone)
                self._sync.end(number)
            except torch.OutOfMemoryError:
                if self._sync.runs_every_rank:
                    raise  # the other ranks wait inside a collective that we cannot join: let the run end
                result.outputs.clear()
                return False
            result.outputs.append(output)
            result.forward_seconds += forwarded - started
            result.backward_seconds += time.perf_counter() - forwarded
        return True

    def _backward(self, output: StepOutput, *, is_whole: bool) -> None:
        """Run backward for one micro-batch; `is_whole` if it is the only one in the update."""
        loss_sum, weight = output.loss_sum, output.weight
        # Whether it is positive can be read without waiting for a device.
        is_known = is_whole and (not isinstance(weight, Tensor) or weight.is_cpu) and bool(weight > 0)
        self._is_divided = is_known and not self.scale.is_dynamic and loss_sum.dtype in _PRECISE
        start = 1.0 / float(weight) if self._is_divided else self.scale.value
        run_backward(loss_sum, torch.full_like(loss_sum, start))

    def _agree(self, outputs: list[StepOutput], out_of_memory: bool, wants_stop: bool) -> list[float]:
        """Return the sums over all ranks of losses, weights, out-of-memory errors and stop requests."""
        # Read after backward was issued, so that the device is waited for only once, at the end.
        loss_sum = weight = 0.0
        for output in outputs:
            loss_sum += output.loss_sum.item()
            weight += float(output.weight)
        own = [loss_sum, weight, float(out_of_memory), float(wants_stop)]
        if not self._is_distributed:
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
        if self.scale.is_dynamic:
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
        self._take_step()


def run_backward(loss: Tensor, gradient: Tensor) -> None:
    """Same as `loss.backward(gradient)`, for a `gradient` of the same shape, dtype and device as `loss`.

    For a plain tensor on the CPU this calls the engine as torch does, without the checks before it, which cannot fail
    here. Together with the wrapper of the optimizer's step (`optimizer_step`) they cost a small model 90 µs per update,
    half of a bare loop.
    """
    if type(loss) is Tensor and loss.is_cpu:
        _ENGINE.run_backward((loss,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)
    else:
        loss.backward(gradient)


def _total_norm(gradients: list[Tensor], *, are_local: bool) -> float:
    """Return the global norm of all gradients. For sharded ones it is computed over all ranks."""
    if are_local:
        # On the CPU nothing waits for a device: adding plain numbers costs a third of doing it with tensors.
        return math.hypot(*[norm.item() for norm in torch._foreach_norm(gradients)])
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor().item() if isinstance(norm, DTensor) else norm.item()


def optimizer_step(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Return a function that steps the optimizer, without torch's wrapper where possible."""
    # All such wrappers share one code object, which identifies them.
    wrapper = torch.optim.Optimizer.profile_hook_step(lambda _: None)
    is_wrapped = getattr(type(optimizer).step, "__code__", None) is wrapper.__code__
    inner = getattr(type(optimizer).step, "__wrapped__", None) if is_wrapped else None

    def take() -> object:
        is_watched = (
            "step" in optimizer.__dict__
            or optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
            or torch._C._autograd._profiler_enabled()
        )
        return optimizer.step() if inner is None or is_watched else inner(optimizer)

    return take
