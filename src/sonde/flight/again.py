"""A micro-batch's forward made again, bit for bit, while the training stands still.

Where the model returned the loss, the model is called again as it was called. Where the user said what the loss is, the step function is run
again as far as that. Gradients are set aside meanwhile, buffers and generators are put back, and FSDP2 modules let go of the weights that they
gathered, so the training goes on as if nothing had happened.

Losses of single tokens, without the user's help: while a forward runs, every `F.cross_entropy` is computed once more without its mean.

Shift, ignored targets and class weights come out as the user's code has them. A fused kernel that does not call it is not seen:
then `FlightSettings(token_losses=…)` is asked.

At every step the losses of rows come without a second cross-entropy: in eager mode the node of the loss in the graph has saved the logarithms of all probabilities
and the targets, and one gather gives the loss of every token. A compiled model has no such node: there are no losses of rows then, unless somebody gives them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple, final

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
"""The loss is divided, scaled or reshaped in a few steps at most; further down is the model."""


class RowLosses(NamedTuple):
    """One row of a batch."""

    losses: list[float]
    """Of the tokens that count, in order."""
    targets: list[int]
    """Those tokens."""

    @property
    def mean(self) -> float:
        """The mean loss; 0 of a row without targets."""
        return sum(self.losses) / len(self.losses) if self.losses else 0.0


@final
class TokenWatch(TorchFunctionMode):
    """Within its block, the losses of tokens are noted in `found`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []
        """Of each call of the loss function: the loss of every target, the targets, and which of them count."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note the losses, then do what was asked."""
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
        wanted = {
            name: given[name]
            for name in ("input", "target", "weight", "ignore_index", "label_smoothing")
            if name in given
        }
        with torch.no_grad():
            losses = func(**wanted, reduction="none")
            kept = target != given.get("ignore_index", _DEFAULT_IGNORE)
            self.found.append((losses.detach().float(), target.detach(), kept))


def rows_given(losses: Any, batch: Any) -> list[RowLosses]:
    """The losses row by row that a function of the user's gave: rows by tokens, NaN where a token does not count. Targets are the last tokens of each row."""
    tokens = tokens_of(batch)
    found = []
    for row, of_row in enumerate(torch.as_tensor(losses).detach().float().flatten(1).tolist()):
        targets = [0] * len(of_row) if tokens is None or row >= len(tokens) else tokens[row].flatten().tolist()
        pairs = [(loss, target) for loss, target in zip(reversed(of_row), reversed(targets)) if loss == loss][::-1]  # noqa: B905  rows may have a first token that nothing predicts
        found.append(RowLosses([loss for loss, _ in pairs], [target for _, target in pairs]))
    return found


def rows_of(found: Sequence[tuple[Tensor, Tensor, Tensor]], num_rows: int) -> list[RowLosses]:
    """The losses row by row; empty when the calls cannot be told apart by rows. The largest call counts: others are auxiliary."""
    if not found or num_rows < 1:
        return []
    largest = max(found, key=lambda one: one[0].numel())
    if not largest[0].numel() or largest[0].numel() % num_rows:
        return []
    parts = zip(*(one.cpu().reshape(num_rows, -1) for one in largest), strict=True)
    return [RowLosses(losses[kept].tolist(), targets[kept].tolist()) for losses, targets, kept in parts]


def row_means(loss: Tensor, num_rows: int) -> RowMeans | None:
    """The rows behind a loss, before its backward; None when they cannot be had."""
    node = _node(loss.grad_fn)
    if node is None or num_rows < 1:
        return None
    try:
        scores, target, ignored = node._saved_self, node._saved_target, node._saved_ignore_index
    except (AttributeError, RuntimeError):  # freed by a backward already
        return None
    if not target.numel() or target.numel() % num_rows or scores.dim() != 2:
        return None
    ignored -= (1 << 64) if ignored >> 63 else 0  # torch hands out -100 without its sign
    tokens = F.nll_loss(scores.detach(), target, ignore_index=ignored, reduction="none").float()  # 0: no target
    if not tokens.is_cpu:
        counts = (target != ignored).view(num_rows, -1).sum(1)
        return RowMeans(tokens.view(num_rows, -1).sum(1) / counts.clamp_min(1), counts)
    counts = np.add.reduce((target.numpy() != ignored).reshape(num_rows, -1), 1)  # numpy costs half of torch
    losses = np.add.reduce(tokens.numpy().reshape(num_rows, -1), 1)
    return RowMeans(losses / np.maximum(counts, 1), counts)


def _node(first: Any) -> Any | None:
    nodes = [first]
    for node in nodes:  # which grows on the way
        if type(node).__name__ in _NODES:
            return node
        if node is not None and len(nodes) < _MAX_NODES:
            nodes += [one for one, _ in node.next_functions]
    return None


class LossSeen(BaseException):
    """The loss of a step function that is run again."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss


def loss_in(output: Any) -> Tensor | None:
    """The loss among what a model returned: its `loss`, or the first scalar that can be differentiated."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None:
        parts = output if isinstance(output, (tuple, list)) else (output,)
        found = next((one for one in parts if isinstance(one, Tensor) and one.dim() == 0 and one.requires_grad), None)
    return found if isinstance(found, Tensor) and found.numel() == 1 else None


def returned_loss(returned: Any) -> Loss | None:
    """The loss that a step function returned: a number, a tensor of one, or what a model returns."""
    if isinstance(returned, float):
        return returned
    found = returned if isinstance(returned, Tensor) and returned.numel() == 1 else loss_in(returned)
    return None if found is None else noted(found)


def mean_loss(losses: list[Loss]) -> float | None:
    """The mean of losses, as a Python number; None without any."""
    return sum(float(one) for one in losses) / len(losses) if losses else None


@contextmanager
def standing_still(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within the block forwards may be made; afterwards the training is as it was."""
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
                module.reshard()  # else the next step would use weights from before the update
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def is_compiled(model: nn.Module) -> bool:
    """Was it, or a part of it, handed to `torch.compile`?"""
    return any(isinstance(one, torch._dynamo.OptimizedModule) or one._compiled_call_impl for one in model.modules())


def uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Within the block a compiled model runs as it was written: what watches single operations sees them, and nothing is compiled anew."""
    return torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()


@final
class Again:
    """Makes forwards of held micro-batches again. Use it inside `standing_still`."""

    def __init__(self, model: nn.Module, device_type: str, token_losses: Callable[[Any], Any] | None = None) -> None:
        self._model = model
        self._token_losses = token_losses
        self._device_type = device_type
        self.step_function: Callable[..., Any] | None = None
        """What the micro-batches went through, where the user handed it in."""
        self.stops_at = ""
        """What ends a step function that is run again: its loss "told" by the user, or "returned" by the model; empty: none is."""

    def can(self, micro: MicroBatch) -> bool:
        """Is there a way to make it again?"""
        if not micro.is_unchanged():
            return False
        return bool(micro.losses and self.step_function) or (
            not micro.losses and any(one.loss is not None for one in micro.forwards)
        )

    def loss(self, micro: MicroBatch) -> float | None:
        """Its loss."""
        if not micro.losses:
            return mean_loss(self._returned(micro))
        function, last = self.step_function, () if micro.last is None else (micro.last,)
        assert function is not None
        return mean_loss(self.to_loss(lambda: function(micro.batch, *last), micro.moment, "told"))

    def rows(self, micro: MicroBatch) -> list[RowLosses]:
        """The losses of its tokens, by rows; empty when nothing tells them."""
        return self.rows_by(lambda: self.loss(micro), micro.batch, micro.moment)

    def rows_by(self, forward: Callable[[], object], batch: Any, moment: Moment) -> list[RowLosses]:
        """The losses of a batch's tokens, watched while `forward` is made with it, or given by the user's function."""
        with uncompiled(self._model):
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
        """The loss of a step function, which is run as far as that; empty when it comes to its end without."""
        self.stops_at = loss_from
        try:
            with back_at(moment, self._device_type):
                call()
        except LossSeen as seen:
            return [seen.loss]
        finally:
            self.stops_at = ""
        return []
