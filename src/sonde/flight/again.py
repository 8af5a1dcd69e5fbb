"""Repeat the forward pass of a micro-batch, bit for bit, while training is paused.

If the model returned the loss, the model is called again with the same arguments. If the user reported the loss, the
step function is run again up to that point. Gradients are set aside meanwhile, buffers and generators are restored, and
FSDP2 modules release the weights they gathered, so training continues as if nothing had happened.

Token losses need no help from the user: while a forward runs, every `F.cross_entropy` is computed once more without its
mean. Shift, ignored targets and class weights come out as in the user's code. A fused kernel that does not call it is
not seen; `FlightSettings(token_losses=…)` is used for those.

At every step, the losses of rows come without a second cross-entropy: in eager mode, the graph node of the loss has
saved all log-probabilities and the targets, and one gather gives the loss of every token. A compiled model has no such
node, so there are no row losses unless they are provided.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.overrides import TorchFunctionMode

from sonde.flight.batch_tree import num_rows, tokens_of
from sonde.flight.ring import Loss, MicroBatch, Moment, RowMeans, back_at, noted
from sonde.train.determinism import generators_kept

_DEFAULT_IGNORE = -100
_NODES: Final = ("NllLossBackward0", "NllLoss2DBackward0")
_MAX_NODES: Final = 24
"""How many graph nodes to search: the loss is divided, scaled or reshaped in a few steps at most, and the model follows."""


class RowLosses(NamedTuple):
    """The losses of one row of a batch."""

    losses: list[float]
    """The losses of the tokens that count, in order."""
    targets: list[int]
    """The target tokens."""

    @property
    def mean(self) -> float:
        """The mean loss; 0 for a row without targets."""
        return sum(self.losses) / len(self.losses) if self.losses else 0.0


class TokenWatch(TorchFunctionMode):
    """Records the losses of tokens in `found` within its block."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []
        """For each call of the loss function: the loss of every target, the targets, and which of them count."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record the losses, then call the function."""
        kwargs = dict(kwargs or {})
        if func in (F.cross_entropy, F.nll_loss):
            self._note(func, args, kwargs)
        return func(*args, **kwargs)

    def _note(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        names = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        target = given["target"]
        if target.is_floating_point():
            return  # probabilities, not tokens
        for name in ("size_average", "reduce", "reduction"):
            given.pop(name, None)
        with torch.no_grad():
            losses = func(**given, reduction="none")
            kept = target != given.get("ignore_index", _DEFAULT_IGNORE)
            self.found.append((losses.detach().float(), target.detach(), kept))


def rows_given(losses: Any, batch: Any) -> list[RowLosses]:
    """Convert user-provided token losses (rows by tokens, NaN where a token does not count) to rows. Targets are each row's last tokens."""
    tokens = tokens_of(batch)
    found = []
    for row, of_row in enumerate(torch.as_tensor(losses).detach().float().flatten(1).tolist()):
        targets = [0] * len(of_row) if tokens is None or row >= len(tokens) else tokens[row].flatten().tolist()
        pairs = [(loss, target) for loss, target in zip(reversed(of_row), reversed(targets)) if loss == loss][::-1]  # noqa: B905  a row may have a first token that is not predicted
        found.append(RowLosses([loss for loss, _ in pairs], [target for _, target in pairs]))
    return found


def rows_of(found: Sequence[tuple[Tensor, Tensor, Tensor]], num_rows: int) -> list[RowLosses]:
    """Return the losses by row; empty if the calls cannot be split into rows. The largest call counts, others are auxiliary."""
    if not found or num_rows < 1:
        return []
    largest = max(found, key=lambda one: one[0].numel())
    if not largest[0].numel() or largest[0].numel() % num_rows:
        return []
    parts = zip(*(one.cpu().reshape(num_rows, -1) for one in largest), strict=True)
    return [RowLosses(losses[kept].tolist(), targets[kept].tolist()) for losses, targets, kept in parts]


def row_means(loss: Tensor, num_rows: int) -> RowMeans | None:
    """Return the mean losses of the rows behind a loss, before its backward; None if they are not available."""
    node = _node(loss.grad_fn)
    if node is None or num_rows < 1:
        return None
    try:
        scores, target, ignored = node._saved_self, node._saved_target, node._saved_ignore_index
    except (AttributeError, RuntimeError):  # already freed by a backward pass
        return None
    if not target.numel() or target.numel() % num_rows or scores.dim() != 2:
        return None
    ignored -= (1 << 64) if ignored >> 63 else 0  # torch returns -100 without its sign
    # 0 where there is no target:
    tokens = F.nll_loss(scores.detach(), target, ignore_index=ignored, reduction="none").float()
    if not tokens.is_cpu:
        counts = (target != ignored).view(num_rows, -1).sum(1)
        return RowMeans(tokens.view(num_rows, -1).sum(1) / counts.clamp_min(1), counts)
    counts = np.add.reduce((target.numpy() != ignored).reshape(num_rows, -1), 1)  # numpy costs half of torch here
    losses = np.add.reduce(tokens.numpy().reshape(num_rows, -1), 1)
    return RowMeans(losses / np.maximum(counts, 1), counts)


def _node(first: Any) -> Any | None:
    nodes = [first]
    for node in nodes:  # the list grows during the loop
        if type(node).__name__ in _NODES:
            return node
        if node is not None and len(nodes) < _MAX_NODES:
            nodes += [one for one, _ in node.next_functions]
    return None


class LossSeen(BaseException):
    """Carries the loss out of a step function that is run again."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss


def loss_in(output: Any) -> Tensor | None:
    """Return the loss in a model's output: its `loss`, or the first differentiable scalar."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None:
        parts = output if isinstance(output, (tuple, list)) else (output,)
        found = next((one for one in parts if isinstance(one, Tensor) and one.dim() == 0 and one.requires_grad), None)
    return found if isinstance(found, Tensor) and found.numel() == 1 else None


def returned_loss(returned: Any) -> Loss | None:
    """Return the loss that a step function returned: a number, a tensor with one element, or a model output."""
    if isinstance(returned, float):
        return returned
    found = returned if isinstance(returned, Tensor) and returned.numel() == 1 else loss_in(returned)
    return None if found is None else noted(found)


def mean_loss(losses: list[Loss]) -> float | None:
    """Return the mean of losses as a Python number; None if there are none."""
    return sum(float(one) for one in losses) / len(losses) if losses else None


@contextmanager
def standing_still(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Allow forward passes within the block and restore the state of the training afterwards."""
    parameters = [*model.parameters(), *(one for group in optimizer.param_groups for one in group["params"])]
    gradients = [(one, one.grad) for one in dict.fromkeys(parameters)]
    buffers = [(one, one.detach().clone()) for one in model.buffers()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with generators_kept(), torch.enable_grad():
            yield
    finally:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # otherwise the next step would use weights from before the update
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def is_compiled(model: nn.Module) -> bool:
    """Return whether the model or a part of it was compiled with `torch.compile`."""
    return any(isinstance(one, torch._dynamo.OptimizedModule) or one._compiled_call_impl for one in model.modules())


class Again:
    """Repeats forward passes of held micro-batches. Use it inside `standing_still`."""

    def __init__(self, model: nn.Module, device_type: str, token_losses: Callable[[Any], Any] | None = None) -> None:
        self._model = model
        self._token_losses = token_losses
        self._device_type = device_type
        self.step_function: Callable[..., Any] | None = None
        """The step function that processed the micro-batches, if the user passed one."""
        self.stops_at = ""
        """What ends a repeated step function: the loss "told" by the user or "returned" by the model. Empty if none is running."""

    def can(self, micro: MicroBatch) -> bool:
        """Return whether the micro-batch can be repeated."""
        if not micro.is_unchanged():
            return False
        return bool(micro.losses and self.step_function) or (
            not micro.losses and any(one.loss is not None for one in micro.forwards)
        )

    def loss(self, micro: MicroBatch) -> float | None:
        """Return the loss of a micro-batch."""
        if not micro.losses:
            return mean_loss(self._returned(micro))
        function, last = self.step_function, () if micro.last is None else (micro.last,)
        assert function is not None
        return mean_loss(self.to_loss(lambda: function(micro.batch, *last), micro.moment, "told"))

    def rows(self, micro: MicroBatch) -> list[RowLosses]:
        """Return the token losses of a micro-batch by row; empty if they are not available."""
        return self.rows_by(lambda: self.loss(micro), micro.batch, micro.moment)

    def rows_by(self, forward: Callable[[], object], batch: Any, moment: Moment) -> list[RowLosses]:
        """Return the token losses of a batch, observed while `forward` runs or computed by the user's function."""
        # A compiled model runs in eager mode, so that single operations can be observed and nothing is recompiled.
        with torch.compiler.set_stance("force_eager") if is_compiled(self._model) else nullcontext():
            if self._token_losses is not None:
                with back_at(moment, self._device_type), torch.no_grad():
                    return rows_given(self._token_losses(batch), batch)
            with TokenWatch() as watch:
                forward()
        return rows_of(watch.found, num_rows(batch))

    def _returned(self, micro: MicroBatch) -> list[Loss]:
        found: list[Loss] = []
        for forward in micro.forwards:
            if forward.loss is not None:
                with back_at(forward.moment, self._device_type):
                    loss = loss_in(self._model(*forward.args, **forward.kwargs))
                found += [] if loss is None else [noted(loss)]
        return found

    def to_loss(self, call: Callable[[], object], moment: Moment, loss_from: str) -> list[Loss]:
        """Run a step function up to its loss and return it; empty if it ends without one."""
        self.stops_at = loss_from
        try:
            with back_at(moment, self._device_type):
                call()
        except LossSeen as seen:
            return [seen.loss]
        finally:
            self.stops_at = ""
        return []
