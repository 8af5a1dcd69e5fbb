"""The whole report as one HTML document. Its policy allows one script and one style, by digest, nothing else."""

import base64
import hashlib
from functools import cache, partial
from importlib import resources
from typing import Any, Final

import orjson

from sonde.report import wording
from sonde.report.curve import HEIGHTS, MAX_EVENTS, event_marks, run_panel, thin
from sonde.report.facts import LOSS, VALIDATION_LOSS, RunFacts
from sonde.report.html.events import events, worst_samples
from sonde.report.html.markup import Child, Markup, note, section, tag
from sonde.report.html.overview import checkpoints, head, healing, notices, settings, speed
from sonde.report.html.verdict import tensors, verdicts

MAX_POINTS: Final = 4000
"""Points of a curve; all of them around events: about 50 kB per curve, however long the run."""


def render_html(facts: RunFacts) -> str:
    """Render the report as an HTML document."""
    return document(f"{facts.name} – sonde report", sections(facts, curves(facts)))


def sections(facts: RunFacts, drawn: Child) -> list[Child]:
    """Return all sections of the report; `drawn` is the section with the curves."""
    return [
        head(facts),
        notices(facts),
        healing(facts),
        verdicts(facts.verdicts),
        drawn,
        events(facts.events),
        worst_samples(facts.worst),
        tensors(facts.verdicts),
        speed(facts),
        checkpoints(facts),
        settings(facts),
        tag("footer", f"Made by sonde {facts.version} on {wording.moment(facts.made)}"),
    ]


def render_short(facts: RunFacts) -> str:
    """Render only curves and events, for a notebook cell."""
    return document(facts.name, curves(facts), events(facts.events))


def curves(facts: RunFacts) -> Markup:
    """Render the placeholder for the curves together with their data."""
    data = curve_data(facts)
    if not data["panels"]:
        return section("Loss", note("No loss was recorded.", "none"), id="loss")
    # The data stay text until the script parses them; `<` and `&` are escaped so that no parser sees an element in
    # them.
    text = orjson.dumps(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    place = tag("div", tag("noscript", tag("p", "The curves are drawn by a script of this page.")), id="curves")
    hint = note("Drag to zoom, or turn the wheel; double-click to see all.", "note hint")
    script = Markup(f'<script type="application/json" id="curve-data">{text}</script>')
    return section("Loss", place, hint, script, id="loss")


def curve_data(facts: RunFacts) -> dict[str, Any]:
    """Return the data that the script draws; every number is finite."""
    around = [one.spike.event.first_step for one in facts.events] + [verdict.step for verdict in facts.verdicts]
    thinned = partial(thin, max_points=MAX_POINTS, around=around)
    panels = []
    for title, height in HEIGHTS.items():
        if title in facts.curves:
            over = facts.curves.get(VALIDATION_LOSS) if title == LOSS else None
            panels.append(run_panel(title, height, facts.curves[title], facts.superseded[title], over, thinned))
    events = event_marks(one.spike.event for one in facts.events[:MAX_EVENTS])
    return {"panels": [one for one in panels if one["lines"] or one["broken"]], "events": events}


def document(title: str, *children: Child) -> str:
    """Return a complete page with the style and the script shared by all our pages."""
    style, script = _asset("page.css"), _asset("curve.js")
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    header = tag(
        "head",
        tag("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        Markup(f"<style>{style}</style>"),
    )
    body = tag("body", tag("main", children), Markup(f"<script>{script}</script>"))
    return f'<!DOCTYPE html>\n<html lang="en">{header}{body}</html>\n'


@cache
def _asset(name: str) -> str:
    return resources.files("sonde.report.html").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
