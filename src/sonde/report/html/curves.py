"""The curves as data for curve.js: panels that share their steps, and the events between them.

At most 4,000 points a curve and the neighbourhood of events in full: about 50 kB of page for a curve, however long the run.
"""

from typing import Any, Final

import orjson

from sonde.report.curve import thin
from sonde.report.facts import RunFacts
from sonde.report.html.markup import Markup, tag
from sonde.report.panels import MAX_EVENTS, event_marks, run_panel

MAX_POINTS: Final = 4000


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
    named = (
        ("loss", 260, facts.loss, facts.validation_loss),
        ("gradient norm", 110, facts.grad_norm, None),
        ("learning rate", 90, facts.learning_rate, None),
        ("tokens per second", 90, facts.speed, None),
    )
    panels = [
        run_panel(
            title,
            height,
            curve,
            facts.superseded.get(curve.name, []),
            over,
            lambda one: thin(one, MAX_POINTS, around=around),
        )
        for title, height, curve, over in named
        if curve is not None
    ]
    return {
        "panels": [one for one in panels if one["lines"] or one["broken"]],
        "events": event_marks(one.spike.event for one in facts.events[:MAX_EVENTS]),
    }
