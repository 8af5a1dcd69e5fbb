"""The curves as data for curve.js: panels that share their steps, and the events between them.

At most 4,000 points a curve and the neighbourhood of events in full: about 50 kB of page for a curve, however long the run.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import orjson

from sonde.report import wording
from sonde.report.curve import Curve, thin
from sonde.report.facts import RunFacts
from sonde.report.html.markup import Markup, tag

MAX_POINTS: Final = 4000
_MAX_BROKEN: Final = 500
_MAX_SUPERSEDED: Final = 20
_MAX_EVENTS: Final = 500
_Line: TypeAlias = dict[str, Any]


def curves(facts: RunFacts) -> Markup:
    """The place for the curves, and their data beside it."""
    data = curve_data(facts)
    if not data["panels"]:
        return tag("section", tag("h2", "Loss"), tag("p", "No loss was recorded.", class_="none"), id="loss")
    # The data are text until the script parses them; `<` and `&` are written so that no parser can see an element in them.
    text = orjson.dumps(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return tag(
        "section",
        tag("h2", "Loss"),
        tag("div", tag("noscript", tag("p", "The curves are drawn by a script of this page.")), id="curves"),
        tag("p", "Drag to zoom, or turn the wheel; double-click to see all.", class_="note hint"),
        Markup(f'<script type="application/json" id="curve-data">{text}</script>'),
        id="loss",
    )


def curve_data(facts: RunFacts) -> dict[str, Any]:
    """What the script draws: plain data, every number finite."""
    around = [one.spike.event.first_step for one in facts.events] + [verdict.step for verdict in facts.verdicts]
    loss = [*_lines("train", facts.loss, facts, around), *_lines("validation", facts.validation_loss, facts, ())]
    panels = [
        _panel("loss", loss, 260, facts.loss),
        _panel("gradient norm", _lines("", facts.grad_norm, facts, around), 110, facts.grad_norm),
        _panel("learning rate", _lines("", facts.learning_rate, facts, around), 90, None),
        _panel("tokens per second", _lines("", facts.speed, facts, ()), 90, None),
    ]
    return {
        "panels": [panel for panel in panels if panel["lines"] or panel["broken"]],
        "events": [
            {
                "first": event.first_step,
                "last": event.last_step,
                "label": wording.visible(f"{event.kind} of {event.metric.replace('_', ' ')}"),
            }
            for event in (one.spike.event for one in facts.events[:_MAX_EVENTS])
        ],
    }


def _panel(title: str, lines: list[_Line], height: int, whole: Curve | None) -> dict[str, Any]:
    broken = [] if whole is None else zip(whole.broken().steps.tolist(), whole.broken().values.tolist(), strict=True)
    marks = [[step, wording.number(value)] for step, value in itertools.islice(broken, _MAX_BROKEN)]
    return {"title": title, "height": height, "lines": lines, "broken": marks}


def _lines(label: str, curve: Curve | None, facts: RunFacts, around: Sequence[int]) -> list[_Line]:
    """A curve, and before it what a restart took back."""
    if curve is None:
        return []
    ghosts = facts.superseded.get(curve.name, [])[-_MAX_SUPERSEDED:]
    kind = "dots" if label == "validation" else "line"
    drawn = [("", "ghost", one) for one in ghosts] + [(label, kind, curve)]
    return [_line(label, kind, thin(one, MAX_POINTS, around=around)) for label, kind, one in drawn if len(one.finite())]


def _line(label: str, kind: str, curve: Curve) -> _Line:
    return {
        "label": label,
        "kind": kind,
        "x": curve.steps.tolist(),
        "y": [_rounded(value) for value in curve.values.tolist()],
    }


def _rounded(value: float) -> float:
    """Six digits are more than a screen shows, and half as long as all of them."""
    rounded = float(f"{value:.6g}")
    return rounded if math.isfinite(rounded) else math.copysign(1.7e308, value)
