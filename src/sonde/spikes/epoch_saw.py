"""A loss that saws with the position in the epoch: it drifts one way within every epoch and jumps
back where the next one begins. Pure.

A loss that falls in stairs from epoch to epoch is usual and not told, nor is one that follows a
learning rate which starts again with every epoch. Where the rate is not known, nothing is said.
"""

from itertools import pairwise
from typing import Final

import numpy as np

from sonde.spikes.quiet_rules import Floats, QuietFinding

EPOCH_SAW: Final = "epoch_saw"

_MIN_EPOCHS: Final = 4
_MIN_POINTS: Final = 16
"""Epochs with fewer points are not judged."""
_MIN_DRIFT: Final = 0.03
"""A smaller drift, as a fraction of the loss, is not told."""
_NOISE: Final = 5.0
"""The drift must be this many times what chance gives."""
_MOST: Final = 0.8
"""In so many epochs it must be the same."""
_RATE_JUMP: Final = 1.2


def epoch_saw(steps: Floats, epochs: Floats, losses: Floats, rates: Floats) -> QuietFinding | None:
    """Find a loss that saws with the position in the epoch."""
    known = np.isfinite(epochs) & np.isfinite(losses)
    numbers = np.floor(epochs[known])
    parts = [known.nonzero()[0][numbers == number] for number in np.unique(numbers)]
    parts = [part for part in parts if len(part) >= _MIN_POINTS][:-1]  # the last may be cut off
    if len(parts) < _MIN_EPOCHS or _follows_rate(parts, rates):
        return None
    begins = np.array([np.median(losses[part[: len(part) // 4]]) for part in parts])
    ends = np.array([np.median(losses[part[-(len(part) // 4) :]]) for part in parts])
    drifts = ends - begins
    jumps = begins[1:] - ends[:-1]
    drift = float(np.median(drifts))
    jump = float(np.median(jumps))
    level = float(np.median(losses[known]))
    noise = float(np.median([_noise_of_median(losses[part]) for part in parts]))
    least = max(_MIN_DRIFT * abs(level), _NOISE * noise)
    if min(abs(drift), abs(jump)) < least or drift * jump >= 0:
        return None
    if np.mean(drifts * drift > 0) < _MOST or np.mean(jumps * jump > 0) < _MOST:
        return None
    way = "rises" if drift > 0 else "falls"
    back = "falls back" if drift > 0 else "jumps up"
    return QuietFinding(
        kind=EPOCH_SAW,
        step=int(steps[parts[-1][-1]]),
        sentence=(
            f"the loss {way} by {abs(drift):.3g} within an epoch and {back} by {abs(jump):.3g}"
            f" where the next one begins, over {len(parts)} epochs"
        ),
        look_at="the order of the data: rows that are sorted, or not shuffled anew in every epoch",
    )


def _follows_rate(parts: list[Floats], rates: Floats) -> bool:
    """Return whether the rate jumps where epochs begin, or is not known."""
    jumps = []
    for before, after in pairwise(parts):
        last = float(rates[before[-1]])
        first = float(rates[after[0]])
        if not (last > 0 and first > 0):
            return True
        jumps.append(max(first / last, last / first))
    return float(np.median(jumps)) > _RATE_JUMP


def _noise_of_median(losses: Floats) -> float:
    """Return how far the median of a quarter of an epoch may be off by chance."""
    spread = 1.4826 * float(np.median(np.abs(np.diff(losses)))) / np.sqrt(2)
    return float(1.2533 * spread / np.sqrt(len(losses) // 4))
