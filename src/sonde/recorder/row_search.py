"""The losses of single rows where the loss itself has none: parts of the batch are run again.

A loss such as MSE, CTC, a sum of several tasks or a fused kernel does not show its rows. But the
step function can be run with one row at a time, or with half of the rows. The result is trusted
only if the losses of the parts add up to that of the whole; where rows depend on each other (batch
statistics, contrastive losses) they do not, and then the row cannot be told.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch

from sonde.recorder.batch_tree import flatten, num_rows, tokens_of, without_rows

MAX_ROWS: Final = 64
"""Batches with more rows than this are searched by halves."""
_TOLERANCE: Final = 0.02
"""The parts add up if they differ from the whole by no more than this fraction of it."""
_OF_EXCESS: Final = 0.1
"""A larger difference is allowed beside a far larger loss: this fraction of the worst row's."""

LossOf = Callable[[Any], "float | None"]
"""Runs the step function on a batch and returns its loss."""
Rows = Callable[[Any, Sequence[int]], Any]
"""Returns a batch with the chosen rows only."""


class RowSearch(NamedTuple):
    """What running the parts of a batch gave."""

    losses: tuple[float, ...] = ()
    """The loss of each row; empty if the rows cannot be told."""
    weights: tuple[float, ...] = ()
    """How much each row counts in the loss of the batch."""
    problem: str = ""
    """Why the rows cannot be told."""


def find_row_losses(
    batch: Any, whole: float, loss_of: LossOf, rows: Rows | None, num_samples: int | None = None
) -> RowSearch:
    """Return the loss of every row of a batch whose loss is `whole`.

    `rows` makes a batch of some rows where the tensors do not say what a row is. Then `num_samples`
    is how many there are, if the user names them: a pair may be two lines of a tensor.
    """
    count = num_rows(batch)
    if rows is not None and num_samples is not None:
        count = num_samples
    if count < 2:
        return RowSearch(problem="the batch has a single row")
    if count > MAX_ROWS:
        return RowSearch(problem=f"the batch has {count} rows, too many to run one by one")
    cut = rows or without_rows
    if rows is None and not _has_rows(batch, count):
        return RowSearch(problem="its tensors do not say what a row is: give the recorder `rows=`")
    losses = []
    for row in range(count):
        loss = loss_of(cut(batch, [row]))
        if loss is None:
            return RowSearch(problem="a single row gave no loss")
        losses.append(loss)
    weights = _weights_that_add_up(batch, losses, whole)
    if weights is None:
        return RowSearch(
            problem="the losses of its rows do not add up to that of the batch, so rows depend on"
            " each other"
        )
    return RowSearch(tuple(losses), tuple(weights))


def _has_rows(batch: Any, count: int) -> bool:
    """Return whether every tensor of a batch has one entry per row, or none at all."""
    with_rows = [tensor for tensor in flatten(batch).tensors if tensor.dim()]
    return all(len(tensor) == count for tensor in with_rows)


def _weights_that_add_up(
    batch: Any, losses: Sequence[float], whole: float
) -> Sequence[float] | None:
    """Return the weights with which the losses of the rows give the loss of the batch; None if no
    usual ones do.
    """
    count = len(losses)
    candidates = [[1.0 / count] * count, [1.0] * count]
    tokens = tokens_of(batch)
    if tokens is not None and tokens.dim() > 1 and len(tokens) == count:
        lengths = (tokens != tokens.flatten()[-1]).flatten(1).sum(1).double()
        total = float(lengths.sum())
        if total:
            candidates.append((lengths / total).tolist())
    if not math.isfinite(whole):
        return candidates[0] if any(not math.isfinite(loss) for loss in losses) else None
    if not all(map(math.isfinite, losses)):
        return None
    allowed = max(_TOLERANCE * abs(whole), _OF_EXCESS * max(losses) / count)
    for weights in candidates:
        total = float(torch.dot(torch.tensor(weights), torch.tensor(list(losses))))
        if abs(total - whole) <= allowed:
            return weights
    return None
