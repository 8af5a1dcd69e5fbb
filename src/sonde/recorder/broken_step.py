"""Find where the numbers of a step stop being finite, by running it again with every module
watched.

    1. is it the batch, or the weights?          looked at as they are
    2. which module is the first?                forward again; then backward, called by us, because
                                                 a gradient scaler refuses to unscale twice
    3. which operation?                          once more with every operation of that module, or
                                                 of the backward pass, watched
    4. is it the precision?                      once more without autocast

Used inside `standing_still`, so nothing of it remains. Each part may fail by itself, in which case
its answer is missing. Costs a handful of steps, at an event only.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.recorder.batch_tree import flatten, num_rows
from sonde.recorder.broken_operation import BackwardWatch, BrokenOperation, ForwardWatch
from sonde.recorder.dropped_activations import ActivationsDroppedError, DroppedActivations
from sonde.recorder.guard import is_from_a_signal
from sonde.recorder.losses import TokenLossCapture
from sonde.recorder.moment import in_float32
from sonde.recorder.put_back import without_copies
from sonde.recorder.scene_limits import SceneLimits, is_out_of_memory
from sonde.recorder.training import Training
from sonde.recorder.update import MicroBatch

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
NOWHERE: Final = "nowhere"
NO_ROOM: Final = BrokenNumbers()
"""Stands for: forward is fine, and there is no time or no memory for backward."""
_NO_ROOM: Final = "no room"
_BOTH: Final = 3
"""How many times as long forward and backward take as forward alone."""
WHOLE: Final = "model"
"""The name of the model itself among its modules."""
_ABSURD: Final = 1e6
"""A value this many times as large as all others of its parameter is not the work of training."""
_MIN_VALUES: Final = 16
"""Among fewer values, one may be far larger than the others."""
_MAX_DEPTH: Final = 3
"""How deep lists and dicts in the inputs and outputs of modules are followed."""


def find_broken(training: Training, micro: MicroBatch, limits: SceneLimits) -> BrokenNumbers | None:
    """Return where the numbers of a micro-batch break; None if they are finite, and `NO_ROOM` if
    that cannot be told. Use it inside `standing_still`.
    """
    bad_rows = rows_not_finite(micro.batch)
    weights = _weights_not_finite(training.model)
    num_weights = len([*training.model.parameters(), *training.model.buffers()])
    count = num_rows(micro.batch)
    lone = _lone_weight(training.model)
    if bad_rows or weights or lone.name:
        return BrokenNumbers(
            input_rows=tuple(bad_rows),
            num_rows=count,
            weights=tuple(weights),
            num_weights=num_weights,
            lone_weight=lone.name,
            lone_value=lone.value,
            lone_others=lone.others,
        )
    walk = _Walk(training.device_type)
    capture = TokenLossCapture()
    started = time.monotonic()
    with walk.on(training.model), _without_reduction(training.model), capture:
        broken_in = _run(training, micro, limits)
    seconds = time.monotonic() - started
    if broken_in == NOWHERE:
        return None
    if broken_in == _NO_ROOM:
        return NO_ROOM
    if capture.found and not any(bool(counts.any()) for _, _, counts in capture.found):
        return BrokenNumbers(has_no_targets=True, num_rows=count, is_forward=True)
    module, largest = walk.culprit(training.model)
    operation = BrokenOperation()
    if limits.allow(seconds):
        with _memory_errors_only(), _without_reduction(training.model), training.eager():
            if broken_in == FORWARD:
                operation = _operation_of_forward(training, micro, module)
            else:
                operation = _operation_of_backward(training, micro)
    is_finite_in_float32 = None
    precision = _precision(training.model, walk.autocast)
    if operation.overflows_in:
        precision = operation.overflows_in
        is_finite_in_float32 = True
    elif walk.autocast is not None and limits.allow(seconds):
        with (
            in_float32(training.model, training.device_type),
            _without_reduction(training.model),
        ):
            is_finite_in_float32 = _run(training, micro, limits) == NOWHERE
    return BrokenNumbers(
        num_rows=count,
        num_weights=num_weights,
        is_forward=broken_in == FORWARD,
        module=module,
        operation=operation.name,
        line=operation.line,
        largest=largest,
        precision=precision,
        is_finite_in_float32=is_finite_in_float32,
    )


def broken_as_it_is(
    model: nn.Module, micros: Sequence[MicroBatch], *, is_forward: bool
) -> BrokenNumbers:
    """Return where numbers are not finite in batches, weights and gradients as they are, between
    backward and the optimizer's step. Nothing is run again, so no operation can be named.
    """
    bad_rows: list[int] = []
    autocast = None
    for micro in micros:
        bad_rows += rows_not_finite(micro.batch)
        if micro.moment.autocast is not None:
            autocast = micro.moment.autocast[0]
    gradients: list[str] = []
    num_gradients = 0
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.grad.layout is torch.strided:
            num_gradients += 1
            if not bool(torch.isfinite(parameter.grad).all()):
                gradients.append(name)
    return BrokenNumbers(
        input_rows=tuple(bad_rows),
        num_rows=sum(micro.num_rows for micro in micros),
        weights=tuple(_weights_not_finite(model)),
        num_weights=len([*model.parameters(), *model.buffers()]),
        is_forward=is_forward,
        gradients=tuple(gradients),
        num_gradients=num_gradients,
        precision=_precision(model, autocast),
        is_run_again=False,
    )


def rows_not_finite(batch: Any) -> list[int]:
    """Return the rows of a batch that hold values that are not finite."""
    tree = flatten(batch)
    count = num_rows(batch, tree)
    rows: set[int] = set()
    for tensor in tree.tensors:
        if not tensor.is_floating_point() or not tensor.dim() or len(tensor) != count:
            continue
        is_bad = ~torch.isfinite(tensor.detach()).flatten(1 if tensor.dim() > 1 else 0)
        if tensor.dim() > 1:
            is_bad = is_bad.any(1)
        rows.update(torch.nonzero(is_bad).flatten().tolist())
    return sorted(rows)


def _weights_not_finite(model: nn.Module) -> list[str]:
    """Return the names of the weights that are not finite, buffers included."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in named if not _is_finite(tensor)]


class _LoneValue(NamedTuple):
    """A value of a parameter that is far beyond all of its others."""

    name: str = ""
    value: float = math.nan
    others: float = math.nan


def _lone_weight(model: nn.Module) -> _LoneValue:
    """Return the parameter one value of which no training gives, as a bit that flips does."""
    for name, parameter in model.named_parameters():
        if parameter.layout is not torch.strided or parameter.numel() < _MIN_VALUES:
            continue
        lowest, highest = parameter.detach().aminmax()  # unlike abs(), it copies nothing
        largest = max(-float(lowest), float(highest))
        if _ABSURD < largest < math.inf:
            sizes = parameter.detach().abs()
            others = float(sizes.masked_fill(sizes == largest, 0.0).max())
            is_alone = int((sizes == largest).sum()) == 1
            if is_alone and largest > _ABSURD * others:
                return _LoneValue(name, largest, others)
    return _LoneValue()


def _is_finite(value: Any) -> bool:
    """Return whether a tensor is finite; masks, whose infinities are meant, are judged by their
    NaN alone.
    """
    if not isinstance(value, Tensor) or value.is_meta or not value.is_floating_point():
        return True
    if not value.requires_grad and value.grad_fn is None:
        return not bool(torch.isnan(value).any())
    return bool(torch.isfinite(value).all())


def _precision(model: nn.Module, autocast: torch.dtype | None) -> str:
    if autocast is not None:
        return str(autocast).removeprefix("torch.")
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return str(parameter.dtype).removeprefix("torch.")
    return "float32"


def _run(training: Training, micro: MicroBatch, limits: SceneLimits) -> str:
    """Run forward and backward, and return in which of them numbers are not finite, if any. The
    first forward keeps no activations, so backward needs another one.
    """
    if not training.is_compiled:
        started = time.monotonic()
        dropped = DroppedActivations(training.model.parameters())
        with contextlib.suppress(ActivationsDroppedError), dropped:
            if not _is_loss_finite(training, micro):
                return FORWARD
        seconds = _BOTH * (time.monotonic() - started)
        if not limits.has_room(dropped.num_bytes) or not limits.allow(seconds):
            return _NO_ROOM
    loss = _loss_with_graph(training, micro)
    if not bool(torch.isfinite(loss)):
        return FORWARD
    return NOWHERE if _are_gradients_finite(training, loss) else BACKWARD


def _is_loss_finite(training: Training, micro: MicroBatch) -> bool:
    return bool(torch.isfinite(_loss_with_graph(training, micro)))


def _loss_with_graph(training: Training, micro: MicroBatch) -> Tensor:
    loss = training.loss_with_graph(micro)
    if loss is None:
        raise ValueError("the step gave no loss when it was run again")
    return loss


def _are_gradients_finite(training: Training, loss: Tensor) -> bool:
    """Look at each gradient when it is there, and let it go: all together take as much memory as
    the weights.
    """
    parameters = [parameter for parameter in training.model.parameters() if parameter.requires_grad]
    scaled = loss * training.loss_scale()
    are_finite: list[bool] = []

    def look(gradient: Tensor) -> Tensor | None:
        is_dense = gradient.layout is torch.strided
        values = gradient if is_dense else gradient.coalesce().values()
        are_finite.append(bool(torch.isfinite(values).all()))
        if not is_dense or isinstance(gradient, DTensor):
            return None
        return gradient.new_zeros(()).expand_as(gradient)

    handles = [parameter.register_hook(look) for parameter in parameters]
    try:
        with without_copies():
            torch.autograd.grad(scaled, parameters, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return all(are_finite)


@contextmanager
def _memory_errors_only() -> Iterator[None]:
    """Let nothing pass but that there is no memory left: without it, an answer is missing."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error) or is_from_a_signal(error):
            raise


def _operation_of_forward(training: Training, micro: MicroBatch, name: str) -> BrokenOperation:
    """Return the operation of a module that gives the first numbers that are not finite; without
    the name of a module, that of the whole forward pass.
    """
    module = None
    if name:
        module = dict(training.model.named_modules())["" if name == WHOLE else name]
    watch = ForwardWatch()
    dropped = nullcontext() if training.is_compiled else DroppedActivations()
    with contextlib.suppress(ActivationsDroppedError), watch.on(module), dropped:
        training.loss_with_graph(micro)
    return watch.found


def _operation_of_backward(training: Training, micro: MicroBatch) -> BrokenOperation:
    """Return the backward function that gives the first gradient that is not finite."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it is slow
        # So that every function knows the line of the forward pass that it belongs to.
        with torch.autograd.detect_anomaly(check_nan=False):
            loss = training.loss_with_graph(micro)
            if loss is None:
                return BrokenOperation()
            watch = BackwardWatch(loss)
            try:
                _are_gradients_finite(training, loss)
            finally:
                watch.close()
    return watch.found


def _without_reduction(model: nn.Module) -> AbstractContextManager[object]:
    """Keep DistributedDataParallel from exchanging gradients that nobody applies."""
    no_sync: Callable[[], AbstractContextManager[object]] | None = getattr(model, "no_sync", None)
    return nullcontext() if no_sync is None else no_sync()


class _Call(NamedTuple):
    """One call of a module."""

    name: str
    largest_input: float
    is_input_finite: bool
    is_output_finite: bool


class _Walk:
    """Watches the modules of a model during one forward and backward pass."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self.autocast: torch.dtype | None = None
        """The precision of autocast in the forward pass; None if it is off."""
        self._calls: list[_Call] = []
        """In the order in which the modules returned: inner ones before outer ones."""
        self._broke_gradients: list[str] = []
        """Modules whose gradients came in finite and went out broken, in the order of backward."""
        self._received: dict[str, bool] = {}
        """Whether the gradients of a module's outputs were finite."""

    @property
    def is_forward_broken(self) -> bool:
        """Whether a module gave an output that is not finite."""
        return any(not call.is_output_finite for call in self._calls)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Watch the modules of a model within the block."""
        handles = [
            module.register_forward_hook(partial(self._called, name or WHOLE), with_kwargs=True)
            for name, module in model.named_modules()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def culprit(self, model: nn.Module) -> tuple[str, float]:
        """Return the first module that makes numbers break, and the largest number that went into
        it; an empty name if there is none.
        """
        if self.is_forward_broken:
            for call in self._calls:
                if call.is_input_finite and not call.is_output_finite:
                    return call.name, call.largest_input
            return "", math.nan
        if not self._broke_gradients:
            return "", math.nan
        names = {name for name, _ in model.named_modules()}
        first = self._broke_gradients[0]
        inner = [
            name for name in self._broke_gradients if name.startswith(f"{first}.") and name in names
        ]
        name = inner[0] if inner else first
        inputs = [call.largest_input for call in self._calls if call.name == name]
        return name, max(inputs, default=math.nan)

    def _called(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        del module
        if torch.is_autocast_enabled(self._device_type):
            self.autocast = torch.get_autocast_dtype(self._device_type)
        inputs = _tensors([args, kwargs], 0)
        outputs = _tensors(output, 0)
        self._calls.append(
            _Call(
                name,
                _largest(inputs),
                all(map(_is_finite, inputs)),
                all(map(_is_finite, outputs)),
            )
        )
        for tensor in outputs:
            if tensor.requires_grad:
                tensor.register_hook(partial(self._gradient_in, name))
        for tensor in inputs:
            if tensor.requires_grad:
                tensor.register_hook(partial(self._gradient_out, name))

    def _gradient_in(self, name: str, gradient: Tensor) -> None:
        is_finite = bool(torch.isfinite(gradient).all())
        self._received[name] = self._received.get(name, True) and is_finite

    def _gradient_out(self, name: str, gradient: Tensor) -> None:
        is_broken = not bool(torch.isfinite(gradient).all())
        if is_broken and self._received.get(name, False):
            self._broke_gradients.append(name)


def _tensors(value: Any, depth: int) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if depth > _MAX_DEPTH:
        return []
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return []
    found: list[Tensor] = []
    for inner in value:
        found += _tensors(inner, depth + 1)
    return found


def _largest(tensors: list[Tensor]) -> float:
    """Return the largest finite magnitude in tensors; NaN if there are none."""
    largest = math.nan
    for tensor in tensors:
        finite = tensor.detach()[torch.isfinite(tensor.detach())]
        if finite.numel():
            here = float(finite.abs().max())
            largest = here if math.isnan(largest) else max(largest, here)
    return largest
