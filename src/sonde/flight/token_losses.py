"""Losses of single tokens, without the user's help: while a forward runs, every `F.cross_entropy` is computed once more without its mean.

Shift, ignored targets and class weights come out as the user's code has them. A fused kernel that does not call it is not seen:
then `FlightSettings(token_losses=…)` is asked.

At every step the losses of rows come without a second cross-entropy: in eager mode the node of the loss in the graph has saved the logarithms of all probabilities
and the targets, and one gather gives the loss of every token. A compiled model has no such node: there are no losses of rows then, unless somebody gives them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sonde.flight.batch_tree import tokens_of

_DEFAULT_IGNORE = -100
_NODES: Final = ("NllLossBackward0", "NllLoss2DBackward0")
_MAX_NODES: Final = 24
"""The loss is divided, scaled or reshaped in a few steps at most; further down is the model."""


class RowMeans(NamedTuple):
    """The rows of one micro-batch."""

    losses: Any
    """The mean loss of each, 0 of a row without targets: an array, or a tensor on a device."""
    counts: Any
    """How many targets it has."""


class Losses(NamedTuple):
    """One call of the loss function, token by token."""

    losses: Tensor
    """Of each target, in the shape of the targets."""
    targets: Tensor
    """The tokens that were to be predicted."""
    kept: Tensor
    """Those that count."""


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
        self.found: list[Losses] = []

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
            self.found.append(Losses(losses.detach().float(), target.detach(), kept))


def rows_given(losses: Any, batch: Any) -> list[RowLosses]:
    """The losses row by row that a function of the user's gave: rows by tokens, NaN where a token does not count. Targets are the last tokens of each row."""
    tokens = tokens_of(batch)
    found = []
    for row, of_row in enumerate(torch.as_tensor(losses).detach().float().flatten(1).tolist()):
        targets = [0] * len(of_row) if tokens is None or row >= len(tokens) else tokens[row].flatten().tolist()
        pairs = [(loss, target) for loss, target in zip(reversed(of_row), reversed(targets)) if loss == loss][::-1]  # noqa: B905  rows may have a first token that nothing predicts
        found.append(RowLosses([loss for loss, _ in pairs], [target for _, target in pairs]))
    return found


def rows_of(found: Sequence[Losses], num_rows: int) -> list[RowLosses]:
    """The losses row by row; empty when the calls cannot be told apart by rows. The largest call counts: others are auxiliary."""
    if not found or num_rows < 1:
        return []
    losses, targets, kept = max(found, key=lambda one: one.losses.numel())
    if not losses.numel() or losses.numel() % num_rows:
        return []
    parts = [one.reshape(num_rows, -1).tolist() for one in (losses, targets, kept)]
    return [
        RowLosses(
            [loss for loss, keep in zip(row, keeps, strict=True) if keep],
            [target for target, keep in zip(tokens, keeps, strict=True) if keep],
        )
        for row, tokens, keeps in zip(*parts, strict=True)
    ]


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
