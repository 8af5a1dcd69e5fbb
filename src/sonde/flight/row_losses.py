"""Losses of the rows of a batch, without a second cross-entropy: the node of the loss in the graph has saved what is needed.

`F.cross_entropy` in eager mode leaves a node that holds the logarithms of all probabilities and the targets; one gather gives the loss of every token.
A compiled model has no such node: there are no losses of rows then, unless somebody gives them.
"""

from typing import Any, Final, NamedTuple

import torch.nn.functional as F
from torch import Tensor

_NODES: Final = ("NllLossBackward0", "NllLoss2DBackward0")
_MAX_NODES: Final = 24
"""The loss is divided, scaled or reshaped in a few steps at most; further down is the model."""


class RowMeans(NamedTuple):
    """The rows of one micro-batch."""

    losses: Any
    """The mean loss of each, 0 of a row without targets: an array, or a tensor on a device."""
    counts: Any
    """How many targets it has."""


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
    tokens: Any = F.nll_loss(scores.detach(), target, ignore_index=ignored, reduction="none").float()  # 0: no target
    if tokens.is_cpu:  # numpy's operations cost half of torch's
        tokens, target = tokens.numpy(), target.numpy()
    counts = (target != ignored).reshape(num_rows, -1).sum(1)
    return RowMeans(tokens.reshape(num_rows, -1).sum(1) / counts.clip(1), counts)


def _node(first: Any) -> Any | None:
    nodes = [first]
    for node in nodes:  # which grows on the way
        if type(node).__name__ in _NODES:
            return node
        if node is not None and len(nodes) < _MAX_NODES:
            nodes += [one for one, _ in node.next_functions]
    return None
