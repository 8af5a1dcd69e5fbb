"""The same text again: within one batch, and in the whole corpus. Pure functions over token ids.

Texts are compared by runs of tokens. Two samples that share a few such runs quote one another; two that share most of them are the same.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_RUN: Final = 12
_PRIME: Final = 1_000_003


class Repeats(NamedTuple):
    """How much of a batch is in it more than once."""

    share: float
    """Part of the samples that are mostly made of what another one of them says."""
    rows: tuple[int, ...]
    """Those samples."""


def repeats_within(rows: Sequence[Sequence[int]], *, least: float = 0.6) -> Repeats:
    """The samples of a batch of which at least `least` is also in another sample of it."""
    runs = [_runs(row) for row in rows]
    seen = Counter(run for of_row in runs for run in of_row)
    doubled = [
        place
        for place, of_row in enumerate(runs)
        if of_row and sum(seen[run] > 1 for run in of_row) >= least * len(of_row)
    ]
    return Repeats(len(doubled) / max(len(rows), 1), tuple(doubled))


def occurrences(tokens: Sequence[int], corpus: NDArray[np.generic], *, length: int = _RUN) -> int:
    """How often the corpus has what a text says: the median, over its runs of tokens, of how often each occurs."""
    length = min(length, len(tokens))
    if length < 4 or len(corpus) < length:
        return 0
    known, counts = np.unique(_hashes(np.asarray(corpus), length), return_counts=True)
    wanted = _hashes(np.asarray(tokens), length)
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    found = np.where(known[places] == wanted, counts[places], 0)
    return int(np.median(found))


def _runs(row: Sequence[int]) -> set[tuple[int, ...]]:
    # What short samples share by accident is a larger part of them.
    length = _RUN if len(row) >= 4 * _RUN else max(round(0.6 * len(row)), 1)
    return {tuple(row[start : start + length]) for start in range(len(row) - length + 1)}


def _hashes(tokens: NDArray[np.generic], length: int) -> NDArray[np.uint64]:
    """A number for each run of `length` tokens."""
    values = tokens.astype(np.uint64)
    hashed = np.zeros(len(values) - length + 1, np.uint64)
    with np.errstate(over="ignore"):
        for place in range(length):
            hashed = hashed * np.uint64(_PRIME) + values[place : place + len(hashed)]
    return hashed
