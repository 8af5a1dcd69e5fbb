"""The events of a curve that is already there: the rule that watches a training, asked about every
point. Pure.

    find_curve_events(steps, values)     with the steps of the log, whatever their distance

The rule needs 48 points before it judges, and the steep start of a run is in its idea of noise for
another 96. A short log has no more than that, so the first points are judged by a blunter rule too:
a value that lies above everything in the eight points before it by twice their range. A log that
rounds cannot tell a rise from its last digit: 0.0002 after 0.0001 is no event. Both rules judge
points, not steps: a log with a point every 25 steps is judged like one with a point every step.
"""

import math
import statistics
from dataclasses import replace
from typing import Final

import numpy as np

from sonde.records.columns import Floats, Integers
from sonde.spikes.detectors import GOOD_STEPS, NONFINITE, SPIKE, Event, Score, find_events
from sonde.spikes.robust_rule import RobustRule

_NUM_EARLY: Final = 144
"""The rule is silent or has the steep start in its noise for this many points: 16 of the level and
128 of the noise.
"""
_NUM_BEFORE: Final = 8
_MIN_BEFORE: Final = 4
_MIN_RISE: Final = 0.3
"""An early event is at least this fraction above the highest value before it."""
_MIN_RANGES: Final = 2.0
"""An early event is this many times the range of the values before it above them."""
_NUM_USUAL: Final = 64
_MIN_QUANTA: Final = 5
"""An event rises by more than this many times the last digit that a log prints."""


def find_curve_events(steps: Integers, values: Floats, *, metric: str = "loss") -> list[Event]:
    """Return the events of a series, with steps in place of points.

    ```python
    import numpy as np

    from sonde.curves import find_curve_events

    values = np.array([3.0 + step % 5 / 100 for step in range(400)])
    values[250] = 9.0
    (event,) = find_curve_events(np.arange(400), values)
    assert event.first_step == 250
    ```
    """
    numbers = values.tolist()
    found = find_events(numbers, RobustRule(), metric=metric)
    taken = {place for event in found for place in range(event.first_step, event.last_step + 1)}
    early = [
        event
        for event in _early_events(numbers[:_NUM_EARLY], metric)
        if taken.isdisjoint(range(event.first_step, event.last_step + 1))
    ]
    at = steps.tolist()
    least = _MIN_QUANTA * _quantum(values)
    noticed = [event for event in (*early, *found) if _is_real(numbers, event, least)]
    return [
        replace(
            event,
            first_step=at[event.first_step],
            last_step=at[event.last_step],
            peak_step=at[event.peak_step],
        )
        for event in sorted(noticed, key=lambda event: event.first_step)
    ]


def _is_real(values: list[float], event: Event, least: float) -> bool:
    """Return whether an event is more than the last digit of a log, or one of its few values."""
    if event.kind == NONFINITE:
        return True
    return event.peak - event.baseline > least and not _is_one_of_few(values, event)


def _quantum(values: Floats) -> float:
    """Return the smallest difference between two values: the last digit of a log that rounds."""
    distinct = np.unique(values[np.isfinite(values)])
    with np.errstate(over="ignore"):
        return float(np.diff(distinct).min()) if len(distinct) > 1 else 0.0


def _is_one_of_few(values: list[float], event: Event) -> bool:
    """Return whether the values before an event are mostly the same number, and it is no further
    from it than some of them: a policy's loss is 0 at most steps and anything at others.
    """
    before = values[max(event.first_step - _NUM_USUAL, 0) : event.first_step]
    finite = [value for value in before if math.isfinite(value)]
    if not finite or not math.isfinite(event.peak):
        return False
    commonest = statistics.mode(finite)
    if 2 * finite.count(commonest) <= len(finite):
        return False
    farthest = max(abs(value - commonest) for value in finite)
    return event.peak - commonest <= 2 * farthest


def _early_events(values: list[float], metric: str) -> list[Event]:
    """Return the events of the first points of a run. Their `first_step`, `last_step` and
    `peak_step` are places in `values`, as those of `find_events` are.
    """
    events: list[Event] = []
    good: list[float] = []
    for place, value in enumerate(values):
        score = _early_score(good[-_NUM_BEFORE:], value)
        if score is None:
            if abs(value) < float("inf"):
                good.append(value)
        elif events and place - events[-1].last_step <= GOOD_STEPS:
            events[-1] = events[-1].with_step(place, value, score)
        else:
            events.append(Event.beginning(metric, place, value, score))
    return events


def _early_score(before: list[float], value: float) -> Score | None:
    """Return the score of a value that stands out from those before it, or None."""
    # A loss below 0, such as a policy's, has no level that a fraction could be taken of.
    if len(before) < _MIN_BEFORE or min(before) < 0:
        return None
    high = max(before)
    allowed = max(_MIN_RANGES * (high - min(before)), _MIN_RISE * abs(high), 1e-9)
    if not value > high + allowed:
        return None
    middle = sorted(before)[len(before) // 2]
    return Score(SPIKE, middle, (value - middle) / max(high - min(before), 1e-3 * abs(high), 1e-9))
