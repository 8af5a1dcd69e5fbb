"""Rows that come again while others have not come once. Pure, for rows with numbers of their own.

In an epoch every row comes once, so new rows stop where repeats begin. A sampler that draws with
replacement mixes both, and how many rows come twice follows from the share of new ones. Loader
workers that each read all of the data mix both too, and far more rows come twice than by chance.
At most 100,000 numbers are held; then nothing is said any more.
"""

import math
from collections.abc import Iterable
from typing import Final

from sonde.spikes.quiet_rules import QuietFinding

ROWS_AGAIN: Final = "rows_again"

_MAX_ROWS: Final = 100_000
_BLOCK: Final = 512
"""So many rows are looked at together."""
_MIN_NEW: Final = 0.1
_MAX_NEW: Final = 0.9
"""Where fewer rows are new an epoch has ended, where more are it has not."""


class RowsAgain:
    """Watches the numbers of the rows of one training."""

    def __init__(self) -> None:
        self._seen = set[int]()
        self._again = set[int]()
        self._num_in_block = 0
        self._num_new = 0
        self._num_mixed = 0
        self.is_over = False
        """Whether nothing more can be said."""

    def observe(self, step: int, rows: Iterable[int]) -> QuietFinding | None:
        """Add the rows of a step."""
        for row in rows:
            self._num_in_block += 1
            if row in self._seen:
                self._again.add(row)
            else:
                self._seen.add(row)
                self._num_new += 1
        if self._num_in_block < _BLOCK:
            return None
        share_new = self._num_new / self._num_in_block
        self._num_in_block = 0
        self._num_new = 0
        if len(self._seen) > _MAX_ROWS:
            self.is_over = True
            self._seen.clear()
            self._again.clear()
            return None
        is_mixed = _MIN_NEW < share_new < _MAX_NEW
        self._num_mixed = self._num_mixed + 1 if is_mixed else 0
        if self._num_mixed < 2:
            return None
        return rows_again(step, len(self._seen), len(self._again), share_new)


def rows_again(step: int, num_seen: int, num_again: int, share_new: float) -> QuietFinding | None:
    """Find rows that come twice far more often than by chance, while `share_new` of the rows are
    new.
    """
    share_again = num_again / num_seen
    draws_per_row = -math.log(share_new)
    by_chance = 1 - draws_per_row * share_new / (1 - share_new)
    if share_again < 0.5 * (1 + by_chance):
        return None
    return QuietFinding(
        kind=ROWS_AGAIN,
        step=step,
        sentence=(
            f"{share_again:.0%} of the {num_seen} rows seen so far came more than once, while"
            " others still come for the first time"
        ),
        look_at=(
            "the loader: workers or ranks that each read all of the data, or a sampler that repeats"
            " rows on purpose"
        ),
    )
