"""Curves as the data that curve.js draws in reports and the dashboard: panels with shared steps, and event marks. Pure.

    {"panels": [{"title": "loss", "height": 260, "lines": […], "broken": [[350, "NaN"]]}],
     "events": [{"first": 300, "last": 300, "label": "SPIKE of loss"}]}

A line has a `label`, a `kind` (its CSS class), `dx` (the first step, then the difference to each next one: a third of
the bytes) and `y`. A report has at most 4,000 points per curve and keeps every point around events: about 50 kB per
curve, however long the run.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from sonde.report import wording
from sonde.report.curve import Curve, thin
from sonde.report.facts import RunFacts
from sonde.spikes.detectors import Event

MAX_EVENTS: Final = 500
MAX_POINTS: Final = 4000
_MAX_BROKEN: Final = 500
_MAX_SUPERSEDED: Final = 20
Line: TypeAlias = dict[str, Any]
Thinned: TypeAlias = Callable[[Curve], Curve]


def panel(title: str, lines: Sequence[Line], height: int, whole: Curve | None) -> dict[str, Any]:
    """Return one panel. Non-finite values of `whole` are marked; if there are many, an evenly spread selection is."""
    broken = None if whole is None else whole.broken()
    marks = []
    if broken is not None and len(broken):
        chosen = np.unique(np.linspace(0, len(broken) - 1, min(len(broken), _MAX_BROKEN)).astype(np.int64))
        found = zip(broken.steps[chosen].tolist(), broken.values[chosen].tolist(), strict=True)
        marks = [[step, wording.number(value)] for step, value in found]
    return {"title": wording.visible(title), "height": height, "lines": lines, "broken": marks}


def line(label: str, kind: str, curve: Curve) -> Line:
    """Return a thinned curve as a line of a panel."""
    differences = np.diff(curve.steps, prepend=curve.steps[:1] * 0).tolist()
    values = [_rounded(value) for value in curve.values.tolist()]
    return {"label": wording.visible(label), "kind": kind, "dx": differences, "y": values}


def run_panel(
    title: str, height: int, curve: Curve, ghosts: Sequence[Curve], validation: Curve | None, thinned: Thinned
) -> dict[str, Any]:
    """Return the panel of one series: superseded stretches behind it, evaluations as dots on top."""
    drawn = [("", "ghost", one) for one in ghosts[-_MAX_SUPERSEDED:]]
    drawn += [("" if validation is None else "train", "line", curve)]
    drawn += [] if validation is None else [("validation", "dots", validation)]
    lines = [line(label, kind, thinned(one)) for label, kind, one in drawn if len(one.finite())]
    return panel(title, lines, height, curve)


def event_marks(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the marks for events."""
    marks = []
    for event in events:
        label = wording.visible(f"{event.kind} of {event.metric.replace('_', ' ')}")
        marks.append({"first": event.first_step, "last": event.last_step, "label": label})
    return marks


def _rounded(value: float) -> float:
    """Round to six digits: more than a screen shows, and half as long as full precision."""
    rounded = float(f"{value:.6g}")
    return rounded if math.isfinite(rounded) else math.copysign(1.7e308, value)


def curve_data(facts: RunFacts) -> dict[str, Any]:
    """Return the data that the script draws; every number is finite."""
    around = [one.spike.event.first_step for one in facts.events] + [verdict.step for verdict in facts.verdicts]
    thinned = partial(thin, max_points=MAX_POINTS, around=around)
    named = (
        ("loss", 260, facts.loss, facts.validation_loss),
        ("gradient norm", 110, facts.grad_norm, None),
        ("learning rate", 90, facts.learning_rate, None),
        ("tokens per second", 90, facts.speed, None),
    )
    panels = []
    for title, height, curve, over in named:
        if curve is not None:
            ghosts = facts.superseded.get(curve.name, [])
            panels.append(run_panel(title, height, curve, ghosts, over, thinned))
    events = event_marks(one.spike.event for one in facts.events[:MAX_EVENTS])
    return {"panels": [one for one in panels if one["lines"] or one["broken"]], "events": events}
