"""The rows of a batch of pairs, such as texts and their translations.

A batch of a language model has targets too, but they are its own tokens, shifted or not; and the
targets of a tagger are few classes. Both are told apart by what they hold.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from sonde.recorder.batch_tree import token_rows, unpadded

_SOURCES: Final = ("input_ids", "source", "sources", "src")
_TARGETS: Final = ("labels", "target", "targets", "tgt", "trg")
_MOST_ALIKE: Final = 0.5
"""Targets of which more than this fraction are the tokens at their place, or the next ones, are
those of a language model.
"""
_FEW_KINDS: Final = 0.3
"""Targets with fewer different values than this fraction of those of their tokens are classes."""


class PairedRow(NamedTuple):
    """The tokens of a row."""

    source: Sequence[int]
    target: Sequence[int]


def paired_rows(batch: Any) -> list[PairedRow]:
    """Return the rows of a batch of pairs; empty if it holds none."""
    found = _sides(batch)
    if found is None:
        return []
    source, target = found
    if _are_alike(source, target) or _are_classes(source, target):
        return []
    sources = token_rows(batch) if isinstance(batch, Mapping) else source.tolist()
    targets = [[token for token in row if token >= 0] for row in target.tolist()]
    rows = zip(sources, targets, strict=True)
    return [PairedRow(unpadded(before), unpadded(after)) for before, after in rows]


def _sides(batch: Any) -> tuple[Tensor, Tensor] | None:
    """Return the tokens of a batch that go in, and those that are asked for."""
    source: Any = None
    target: Any = None
    if isinstance(batch, Mapping):
        source = next((batch[key] for key in _SOURCES if key in batch), None)
        target = next((batch[key] for key in _TARGETS if key in batch), None)
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        source, target = batch
    else:
        return None
    if not _has_rows(source) or not _has_rows(target) or len(source) != len(target):
        return None
    return source, target


def _has_rows(tokens: Any) -> bool:
    if not isinstance(tokens, Tensor) or tokens.layout is not torch.strided:
        return False
    is_whole = tokens.dtype in (torch.int64, torch.int32, torch.int16)
    return is_whole and tokens.dim() == 2 and tokens.numel() > 0


def _are_alike(source: Tensor, target: Tensor) -> bool:
    """Return whether targets are mostly the tokens at their own place, or the next ones."""
    width = min(source.shape[1], target.shape[1])
    for shift in (0, 1):
        tokens = source[:, shift:width]
        asked = target[:, : width - shift]
        counts = asked >= 0
        num_same = int(((tokens == asked) & counts).sum())
        if num_same > _MOST_ALIKE * int(counts.sum()):
            return True
    return False


def _are_classes(source: Tensor, target: Tensor) -> bool:
    num_kinds = len(target[target >= 0].unique())
    return num_kinds < _FEW_KINDS * len(source.unique())
