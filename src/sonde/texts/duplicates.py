"""Find repeated text within a batch and in the whole corpus. Pure functions over token ids.

Texts are compared by runs of tokens (n-grams). Two samples that share a few runs quote one another; two that share most
of them are duplicates.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_RUN: Final = 12
_PRIME: Final = 1_000_003


class Repeats(NamedTuple):
    """How much of a batch occurs in it more than once."""

    share: float
    """The fraction of samples that mostly repeat another sample of the batch."""
    rows: tuple[int, ...]
    """The indices of those samples."""
    copies: int
    """How often the most frequent of those texts occurs; 1 if none does twice."""


def repeats_within(rows: Sequence[Sequence[int]], *, least: float = 0.6) -> Repeats:
    """Find the samples of a batch that share at least `least` of their token runs with another sample."""
    runs = [_runs(row) for row in rows]
    seen = Counter(run for of_row in runs for run in of_row)
    doubled = [
        place
        for place, of_row in enumerate(runs)
        if of_row and sum(seen[run] > 1 for run in of_row) >= least * len(of_row)
    ]
    copies = max((round(median(seen[run] for run in runs[place])) for place in doubled), default=1)
    return Repeats(len(doubled) / max(len(rows), 1), tuple(doubled), copies)


def occurrences(tokens: Sequence[int], corpus: NDArray[np.generic], *, length: int = _RUN) -> int:
    """Return how often the corpus contains a text: the median number of occurrences over its runs of `length` tokens."""
    length = min(length, len(tokens))
    if length < 4 or len(corpus) < length:
        return 0
    known, counts = np.unique(_hashes(np.asarray(corpus), length), return_counts=True)
    wanted = _hashes(np.asarray(tokens), length)
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    found = np.where(known[places] == wanted, counts[places], 0)
    return int(np.median(found))


def _runs(row: Sequence[int]) -> set[tuple[int, ...]]:
    # Short samples need longer runs relative to their length, because accidental overlap is a larger part of them.
    length = _RUN if len(row) >= 4 * _RUN else max(round(0.6 * len(row)), 1)
    return {tuple(row[start : start + length]) for start in range(len(row) - length + 1)}


def _hashes(tokens: NDArray[np.generic], length: int) -> NDArray[np.uint64]:
    """Return a rolling hash of each run of `length` tokens."""
    values = tokens.astype(np.uint64)
    hashed = np.zeros(len(values) - length + 1, np.uint64)
    with np.errstate(over="ignore"):
        for place in range(length):
            hashed = hashed * np.uint64(_PRIME) + values[place : place + len(hashed)]
    return hashed
