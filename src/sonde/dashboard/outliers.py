"""How many of the worst samples of a run stand out from the rest. Pure.

The highest of thousands of numbers are always far above the mean: that alone says nothing. What the
highest would be if nothing were wrong is estimated from those just below them, whose distances grow
like those of an exponential tail.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final

from sonde.spikes.ledger_log import HIGH

_FEWEST: Final = 10
"""With fewer numbers, no tail can be estimated."""
_MARGIN: Final = 3.0
"""How far above the expected highest number one stands out, in units of the tail: one run in twenty
has such a number by chance.
"""


def num_standing_out(worst: Sequence[float]) -> int:
    """Return how many of the worst means, highest first, stand out."""
    limit = max(HIGH, tail_limit(worst))
    return sum(mean >= limit for mean in worst)


def tail_limit(worst: Sequence[float]) -> float:
    """Return up to where the highest numbers are what the others let expect; minus infinity if they
    are too few to tell.
    """
    num = len(worst)
    if num < _FEWEST:
        return -math.inf
    lowest = worst[-1]
    # The lower half: what stands out is above it, and does not move the estimate.
    ranks = range(num // 2, num)
    expected = statistics.fmean(math.log(num / (rank + 1)) for rank in ranks)
    excess = statistics.fmean(worst[rank] - lowest for rank in ranks)
    return lowest + excess / expected * (math.log(num) + _MARGIN)
