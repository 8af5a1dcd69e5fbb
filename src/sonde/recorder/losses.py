"""What a forward pass tells: its loss, and the losses of its rows and tokens.

Token losses need no help from the user: while a forward runs, every `F.cross_entropy` is computed
once more without its mean. Shift, ignored targets and class weights come out as in the user's code.
A fused kernel that does not call it is not seen: its loop reports the token losses with the loss,
or gives a function (`RecorderOptions(token_losses=…)`).

At every step, the losses of rows come without a second cross-entropy: in eager mode, the graph node
of the loss has saved all log-probabilities and the targets, and one gather gives the loss of every
token. The node of a preference loss has saved the margins of its pairs. A compiled model has no
such node, so there are no row losses unless they are provided.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sonde.recorder.batch_tree import tokens_of
from sonde.recorder.reach import reached
from sonde.recorder.update import Loss, RowMeans, noted

_CROSS_ENTROPY: Final = ("NllLossBackward0", "NllLoss2DBackward0")
_COMPILED: Final = "_torchdynamo_orig_callable"
"""The mark of a compiled function, which torch has no public question for."""
_LOG_SIGMOID: Final = "LogSigmoidBackward0"
_WHOLE: Final = 0.1
"""The losses of rows are those of the batch if they differ by no more than this fraction: class
weights and small auxiliary losses make some difference.
"""
_MAX_NODES: Final = 24
"""How many graph nodes to search: the loss is divided, scaled or reshaped in a few steps at most,
and the model follows.
"""


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


class TokenLossCapture(TorchFunctionMode):
    """Records the losses of tokens in `found` within its block."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []
        """For each call of the loss function: the loss of every target, the targets, and which of
        them count.
        """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record the losses, then call the function."""
        kwargs = dict(kwargs or {})
        if func in (F.cross_entropy, F.nll_loss):
            self._note(func, args, kwargs)
        return func(*args, **kwargs)

    def _note(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        bound = inspect.signature(func).bind(*args, **kwargs)
        bound.apply_defaults()
        given = {**bound.arguments, "size_average": None, "reduce": None, "reduction": "none"}
        target = given["target"]
        if target.is_floating_point():
            return  # probabilities, not tokens
        if _compares_rows(given["input"], target):
            return  # no row has a loss of its own
        with torch.no_grad():
            losses = func(**given).detach().float()
            counts = target != given["ignore_index"]
            self.found.append((losses, target.detach(), counts))


def rows_given(losses: Any, batch: Any) -> list[RowLosses]:
    """Convert user-provided token losses (rows by tokens, NaN where a token does not count) to
    rows. Targets are each row's last tokens.
    """
    tokens = tokens_of(batch)
    found = []
    for row, of_row in enumerate(torch.as_tensor(losses).detach().float().flatten(1).tolist()):
        targets = (
            [0] * len(of_row)
            if tokens is None or row >= len(tokens)
            else tokens[row].flatten().tolist()
        )
        # Paired from the end: a row may have a first token that is not predicted.
        backwards = zip(reversed(of_row), reversed(targets), strict=False)
        pairs = [(loss, target) for loss, target in backwards if loss == loss][::-1]
        found.append(RowLosses([loss for loss, _ in pairs], [target for _, target in pairs]))
    return found


def rows_of(found: Sequence[tuple[Tensor, Tensor, Tensor]], num_rows: int) -> list[RowLosses]:
    """Return the losses by row; empty if the calls cannot be split into rows. The largest call
    counts, others are auxiliary.
    """
    if not found or num_rows < 1:
        return []
    largest = max(found, key=lambda call: call[0].numel())
    if not largest[0].numel() or largest[0].numel() % num_rows:
        return []
    parts = zip(*(part.cpu().reshape(num_rows, -1) for part in largest), strict=True)
    return [
        RowLosses(losses[kept].tolist(), targets[kept].tolist()) for losses, targets, kept in parts
    ]


def add_up(rows: Sequence[RowLosses], loss: float) -> bool:
    """Return whether the losses of rows are those of the whole batch: the mean over all their
    tokens, or over the rows, is near its loss. Of several tasks, they may show one only.
    """
    if not rows:
        return False
    if not math.isfinite(loss):
        return any(not math.isfinite(row.mean) for row in rows)
    token_losses = [loss for row in rows for loss in row.losses]
    if not token_losses:
        return False
    means = (
        sum(token_losses) / len(token_losses),
        sum(row.mean for row in rows) / len(rows),
    )
    return any(abs(mean - loss) <= _WHOLE * abs(loss) for mean in means)


def _means_of(token_losses: Tensor) -> RowMeans:
    """Return the mean losses of rows from those of their tokens, NaN where a token does not
    count.
    """
    by_row = token_losses.detach().float().flatten(1)
    counts = (~by_row.isnan()).sum(1)
    losses = by_row.nansum(1) / counts.clamp_min(1)
    return _on_host(RowMeans(losses, counts))


def row_means(loss: Tensor, num_rows: int, token_losses: Tensor | None = None) -> RowMeans | None:
    """Return the mean losses of the rows behind a loss, before its backward; None if they are not
    available. `token_losses` are what the user reported with it.
    """
    if num_rows < 1:
        return None
    if token_losses is not None:
        return _means_of(token_losses) if len(token_losses) == num_rows else None
    if loss.grad_fn is None:
        return None
    node = _cross_entropy_node(loss.grad_fn)
    if node is None:
        return _preference_losses(loss, num_rows)
    try:
        # torch's notes on autograd document these attributes, in spite of the underscore.
        log_probabilities = node._saved_self  # noqa: SLF001
        target = node._saved_target  # noqa: SLF001
        ignored = node._saved_ignore_index  # noqa: SLF001
    except (AttributeError, RuntimeError):  # already freed by a backward pass
        return None
    if not target.numel() or target.numel() % num_rows or log_probabilities.dim() != 2:
        return None
    if _compares_rows(log_probabilities, target):
        return None
    ignored -= (1 << 64) if ignored >> 63 else 0  # torch returns -100 without its sign
    # 0 where there is no target:
    of_tokens = F.nll_loss(
        log_probabilities.detach(), target, ignore_index=ignored, reduction="none"
    ).float()
    if not of_tokens.is_cpu:
        counts = (target != ignored).view(num_rows, -1).sum(1)
        return RowMeans(of_tokens.view(num_rows, -1).sum(1) / counts.clamp_min(1), counts)
    # numpy costs half of torch here
    targets = target.numpy().reshape(num_rows, -1)
    counts = np.add.reduce(targets != ignored, 1)
    losses = np.add.reduce(of_tokens.numpy().reshape(num_rows, -1), 1)
    return RowMeans(losses / np.maximum(counts, 1), counts, targets, ignored)


def _compares_rows(scores: Tensor, target: Tensor) -> bool:
    """Return whether a loss compares every row with all others, as contrastive losses do: then no
    row has a loss of its own. On a device this is not asked: it would wait.
    """
    if scores.dim() != 2 or scores.size(0) != scores.size(1) or not target.is_cpu:
        return False
    return torch.equal(target, torch.arange(len(target)))


def _preference_losses(loss: Tensor, num_rows: int) -> RowMeans | None:
    """Return the losses of pairs behind a preference loss such as DPO's, the mean of -log
    sigmoid(margin); None if it is another one.
    """
    node = _log_sigmoid_node(loss.grad_fn)
    if node is None:
        return None
    try:
        margins = node._saved_self.detach()  # noqa: SLF001  documented, as above
    except (AttributeError, RuntimeError):
        return None
    if margins.shape != (num_rows,):
        return None
    losses = -F.logsigmoid(margins.float())
    counts = torch.ones_like(losses, dtype=torch.int64)
    return _on_host(RowMeans(losses, counts))


def _log_sigmoid_node(node: Any) -> Any | None:
    """Return the node of a log sigmoid that nothing but scaling and averaging follows. A sum of
    several terms has several branches, and no term is the whole loss.
    """
    for _ in range(_MAX_NODES):
        if node is None or type(node).__name__ == _LOG_SIGMOID:
            return node
        following = [edge for edge, _ in node.next_functions if edge is not None]
        node = following[0] if len(following) == 1 else None
    return None


def _on_host(rows: RowMeans) -> RowMeans:
    """Return the losses of rows as arrays, unless they are on a device."""
    if not rows.losses.is_cpu:
        return rows
    return RowMeans(rows.losses.numpy(), rows.counts.numpy())


def _cross_entropy_node(first: Any) -> Any | None:
    """Return the nearest node of a cross-entropy behind a node; None if there is none near."""
    nodes = [first]
    for node in nodes:  # the list grows during the loop
        if type(node).__name__ in _CROSS_ENTROPY:
            return node
        if node is not None and len(nodes) < _MAX_NODES:
            nodes += [following for following, _ in node.next_functions]
    return None


class LossSeen(BaseException):
    """Carries the loss out of a step function that is run again."""

    def __init__(self, loss: Loss, token_losses: Tensor | None = None) -> None:
        super().__init__()
        self.loss = loss
        self.token_losses = token_losses


def loss_in(output: Any) -> Tensor | None:
    """Return the loss in a model's output: its `loss`, or the first differentiable scalar."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None:
        parts = output if isinstance(output, (tuple, list)) else (output,)
        for part in parts:
            if isinstance(part, Tensor) and part.dim() == 0 and part.requires_grad:
                found = part
                break
    return found if isinstance(found, Tensor) and found.numel() == 1 else None


def returned_loss(returned: Any) -> Loss | None:
    """Return the loss that a step function returned: a number, a tensor with one element, a model
    output, or a dict with a `loss`.
    """
    if not isinstance(returned, Tensor) and isinstance(returned, Mapping):
        returned = returned.get("loss")
    if isinstance(returned, float):
        return returned
    found = (
        returned if isinstance(returned, Tensor) and returned.numel() == 1 else loss_in(returned)
    )
    return None if found is None else noted(found)


def mean_loss(losses: list[Loss]) -> float | None:
    """Return the mean of losses as a Python number; None if there are none."""
    return sum(float(loss) for loss in losses) / len(losses) if losses else None


def is_compiled(model: nn.Module) -> bool:
    """Return whether the model or a part of it was compiled with `torch.compile`."""
    # torch has no public question for it.
    return any(
        isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl  # noqa: SLF001
        for module in model.modules()
    )


def reaches_compiled(roots: Sequence[Any]) -> bool:
    """Return whether some values reach a function that was compiled with `torch.compile`."""
    return any(
        _COMPILED in vars(value) for value in reached(*roots) if isinstance(value, FunctionType)
    )
