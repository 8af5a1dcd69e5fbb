"""What is odd about the values of single rows of a batch without text: constant, far from the other
rows, or not finite.

Each row is summarised by its mean, its spread and its largest magnitude, and compared with the
rows of earlier batches, and of its own if there are few of those.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sonde.recorder.batch_tree import flatten, num_rows
from sonde.spread import Spread

_FAR: Final = 8.0
"""Values are far from those of other rows if a summary is so many deviations away."""
_BEYOND: Final = 3.0
"""They must also be so many times as far away as the farthest of them: the values of some data have
heavy tails.
"""
_MIN_ROWS: Final = 8
"""With fewer rows to compare with, nothing is called odd."""
_SUMMARIES: Final = ("mean", "spread", "largest magnitude")


def odd_rows(batch: Any, before: Sequence[Any]) -> dict[int, str]:
    """Return what is odd about the rows of a batch, compared with the batches before, or with its
    other rows; only rows that are odd are in it.
    """
    own = _row_tensors(batch)
    earlier = [_row_tensors(other) for other in before]
    found: dict[int, str] = {}
    for place, tensor in enumerate(own):
        usual = [tensors[place] for tensors in earlier if place < len(tensors)]
        usual = [other for other in usual if other.shape[1:] == tensor.shape[1:]]
        for row, oddity in _compare(tensor, usual).items():
            found.setdefault(row, oddity)
    return found


def _row_tensors(batch: Any) -> list[Tensor]:
    """Return the tensors of real numbers that have one entry per row."""
    tree = flatten(batch)
    count = num_rows(batch, tree)
    return [
        tensor.detach().float().cpu()
        for tensor in tree.tensors
        if tensor.is_floating_point() and tensor.numel() and tensor.dim() and len(tensor) == count
    ]


def _compare(tensor: Tensor, usual: Sequence[Tensor]) -> dict[int, str]:
    own = _summaries(tensor)
    others = torch.cat([_summaries(other) for other in usual]) if usual else own[:0]
    found: dict[int, str] = {}
    for row in range(len(own)):
        rest = others
        if len(rest) < len(own):
            rest = torch.cat([own[:row], own[row + 1 :], others])
        if len(rest) < _MIN_ROWS:
            continue
        oddity = _oddity(own[row].tolist(), rest)
        if oddity:
            found[row] = oddity
    return found


def _summaries(tensor: Tensor) -> Tensor:
    """Return the mean, the spread and the largest magnitude of each row."""
    flat = tensor.reshape(len(tensor), -1)
    spread = flat.std(1, correction=0)
    return torch.stack([flat.mean(1), spread, flat.abs().amax(1)], 1)


def _oddity(own: Sequence[float], rest: Tensor) -> str:
    if not all(map(math.isfinite, own)):
        return "it holds values that are not finite"
    spreads = Spread(rest[:, 1].tolist())
    if own[1] == 0 and spreads.median > 0:
        return f"all its values are {own[0]:.4g}"
    for place, name in enumerate(_SUMMARIES):
        others = rest[:, place]
        usual = Spread(others.tolist())
        far = usual.z(own[place])
        farthest = float((others[others.isfinite()] - usual.median).abs().max())
        if abs(far) > _FAR and abs(own[place] - usual.median) > _BEYOND * farthest:
            return (
                f"the {name} of its values is {own[place]:.4g}, that of other rows"
                f" {usual.median:.4g} ({far:+.0f} deviations)"
            )
    return ""
