"""Detect text that repeats itself, with any period from one token to half of the text."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

_MAX_ITEMS: Final = 5_000
_RUN: Final = 3
_LEAST_TIMES: Final = 1.5
"""Saying something twice is not repetition yet: this many more periods must follow the first."""


class Repeated(NamedTuple):
    """How much of a sequence repeats what came one period earlier."""

    share: float
    """The fraction of items that equal the one a period earlier, from 0 to 1."""
    period: int
    """The distance between an item and its repetition, for the period with the greatest share (the shortest of equals)."""


def repeated_share(items: Sequence[object]) -> Repeated:
    """Return the fraction of the items that equal the item one period earlier, for the period with the greatest share."""
    items = items[:_MAX_ITEMS]
    best = Repeated(0.0, 1)
    for period in _candidates(items):
        num_same = sum(map(_equal, items, items[period:]))
        share = num_same / (len(items) - period)
        if share > best.share + 1e-9 and num_same >= _LEAST_TIMES * period:
            best = Repeated(share, period)
    return best


def _candidates(items: Sequence[object]) -> list[int]:
    """Return the periods worth trying, shortest first: the most frequent distances between equal runs of items."""
    last: dict[tuple[object, ...], int] = {}
    distances: Counter[int] = Counter()
    for place in range(len(items) - _RUN + 1):
        run = tuple(items[place : place + _RUN])
        if run in last:
            distances[place - last[run]] += 1
        last[run] = place
    return sorted(period for period, _ in distances.most_common(4) if period <= len(items) // 2)


def _equal(one: object, other: object) -> bool:
    return one == other
