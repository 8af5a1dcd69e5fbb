"""Training and validation that part: the validation loss rises from evaluation to evaluation while
the training loss goes on falling. Asked of recorded curves only (curves/judgement.py), not by the
recorder, and told as a fact: a training may be meant to go on. Pure.
"""

from typing import Final, NamedTuple

import numpy as np

from sonde.spikes.quiet_rules import Floats, QuietFinding

PARTING: Final = "parting"

_NUM_RISING: Final = 4
"""So many evaluations in a row must be higher than the one before."""
_MIN_RISE: Final = 0.02
"""A smaller rise above the lowest validation loss, as a fraction of it, is not told."""
_NOISE: Final = 3.0
"""The rise must be this many times the noise of the evaluations."""
_MIN_FALL: Final = 0.01
"""The training loss must have fallen by this fraction."""
_MIN_POINTS: Final = 4
"""Fewer points of the training loss between two evaluations do not say where it is."""


class Series(NamedTuple):
    """A loss by step, ordered."""

    steps: Floats
    values: Floats


def parting(training: Series, validation: Series) -> QuietFinding | None:
    """Find a validation loss that rises at the end while the training loss falls."""
    known = np.isfinite(validation.values)
    steps = validation.steps[known]
    values = validation.values[known]
    if len(values) < _NUM_RISING + 2:
        return None
    lowest = int(np.argmin(values))
    is_rising = bool(np.all(np.diff(values[-_NUM_RISING - 1 :]) > 0))
    if not is_rising or not 0 < lowest < len(values) - _NUM_RISING:
        return None
    rise = float(values[-1] - values[lowest])
    bends = np.diff(values, 2)  # without the trend, noise remains
    if rise < max(_MIN_RISE * abs(values[lowest]), _NOISE * float(np.median(np.abs(bends)))):
        return None
    then = _level(training, steps[lowest - 1], steps[lowest])
    now = _level(training, steps[-2], steps[-1])
    if not now < then - _MIN_FALL * abs(then):
        return None
    return QuietFinding(
        kind=PARTING,
        step=int(steps[-1]),
        sentence=(
            f"since step {int(steps[lowest])} the validation loss rose from {values[lowest]:.4g}"
            f" to {values[-1]:.4g}, while the training loss fell from {then:.4g} to {now:.4g}"
        ),
        look_at=f"the checkpoint of step {int(steps[lowest])}, where the validation loss is lowest",
    )


def _level(series: Series, first: float, last: float) -> float:
    """Return the median of a loss over some steps; NaN if too few of them are known."""
    inside = (series.steps > first) & (series.steps <= last) & np.isfinite(series.values)
    if np.count_nonzero(inside) < _MIN_POINTS:
        return np.nan
    return float(np.median(series.values[inside]))
