"""The size of updates, relative to the weights and to the learning rate, against what is usual in
this training. Pure.

What an optimizer does to the weights is proportional to the rate, whatever its schedule: so the
two are compared. Gradients that grow for a step are another matter: two measurements in a row,
usually 50 steps apart, must agree.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from sonde.spikes.quiet_rules import QuietFinding

UPDATE_SIZE: Final = "update_size"

MAX_SIZES: Final = 64
"""So many measurements are looked at."""
_NUM_FIRST: Final = 2
"""The first measurements of a training do not count: moments and weights are still young."""
_NUM_LAST: Final = 2
_MIN_USUAL: Final = 12
"""Fewer measurements do not say what is usual."""
_LARGE: Final = 20.0
_SMALL: Final = 200.0
_BEYOND: Final = 5.0
"""So many times beyond the most extreme measurement so far it must be."""


class MeasuredSize(NamedTuple):
    """One measurement."""

    step: int
    ratio: float
    """The norm of the update, divided by that of the weights."""
    rate: float
    """The learning rate."""


def update_size(sizes: Sequence[MeasuredSize]) -> QuietFinding | None:
    """Find updates that are far larger or smaller than is usual at their learning rate."""
    if len(sizes) < _NUM_FIRST + _MIN_USUAL + _NUM_LAST:
        return None
    ratios = np.array([size.ratio for size in sizes])
    rates = np.array([size.rate for size in sizes])
    if not np.all(np.isfinite(ratios) & (ratios > 0) & (rates > 0)):
        return None
    relative = ratios / rates
    earlier = relative[_NUM_FIRST:-_NUM_LAST]
    last = relative[-_NUM_LAST:]
    usual = float(np.median(earlier))
    is_large = last.min() > max(_LARGE * usual, _BEYOND * earlier.max())
    is_small = last.max() < min(usual / _SMALL, earlier.min() / _BEYOND)
    if not is_large and not is_small:
        return None
    now = sizes[-1]
    return QuietFinding(
        kind=UPDATE_SIZE,
        step=now.step,
        sentence=(
            f"an update changes the weights by {now.ratio:.2g} of their size; at this learning"
            f" rate {usual * now.rate:.2g} was usual"
        ),
        look_at=(
            "the optimizer: moments that were lost, settings that changed, and weights in half"
            " precision that small updates no longer move"
        ),
    )
