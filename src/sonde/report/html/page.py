"""The whole report as one HTML document.

The policy of a page allows one script and one style, by digest, nothing else.
"""

import base64
import hashlib
import time
from functools import cache
from importlib import resources
from typing import Any, Final

import orjson

from sonde.report import wording
from sonde.report.facts import RunFacts
from sonde.report.html import sections
from sonde.report.html.events import events, worst_samples
from sonde.report.html.markup import Child, Markup, html_document, note, section, tag
from sonde.report.html.verdicts import tensors, verdict_section
from sonde.report.panels import Stretch, View, run_panels
from sonde.version import __version__

MAX_POINTS: Final = 4000
"""Points of a curve; all of them around events: about 50 kB per curve, however long the run."""
_STEPS_AROUND: Final = 40
"""Number of steps before and after an event that are kept without thinning."""


def render_html(facts: RunFacts) -> str:
    """Render the report as an HTML document.

    ```python
    from sonde import Run
    from sonde.report import gather, render_html

    with Run("runs/mine") as run:
        for step in range(1, 101):
            run.logger.log(step, {"loss": 5 / step})
    page = render_html(gather("runs/mine"))  # one file that loads nothing else
    ```
    """
    return document(f"{facts.directory.name} – sonde report", whole_report(facts, curves(facts)))


def whole_report(facts: RunFacts, drawn: Child) -> list[Child]:
    """Return all sections of the report; `drawn` is the section with the curves."""
    return [
        sections.head(facts),
        sections.notices(facts),
        [verdict_section(found, facts.directory) for found in facts.verdicts],
        sections.healing(facts),
        drawn,
        events(facts.marks, facts.events),
        worst_samples(facts.worst),
        map(tensors, facts.verdicts),
        sections.speed(facts),
        sections.checkpoints(facts),
        sections.settings(facts),
        tag("footer", f"Made by sonde {__version__} on {wording.moment(time.time())}"),
    ]


def curves(facts: RunFacts) -> Markup:
    """Render the placeholder for the curves together with their data."""
    data = curve_data(facts)
    if not data["panels"]:
        return section("Loss", note("No loss was recorded.", "none"), id="loss")
    # The data stay text until the script parses them; `<` and `&` are escaped so that no parser
    # sees an element in them.
    text = orjson.dumps(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    place = tag(
        "div",
        tag("noscript", tag("p", "The curves are drawn by a script of this page.")),
        id="curves",
    )
    hint = note("Drag to zoom, or turn the wheel with Ctrl; double-click to see all.", "note hint")
    script = Markup(f'<script type="application/json" id="curve-data">{text}</script>')
    return section("Loss", place, hint, script, id="loss")


def curve_data(facts: RunFacts) -> dict[str, Any]:
    """Return the data that the script draws; every number is finite."""
    view = View(stretch=Stretch(None, None, MAX_POINTS), reach=_STEPS_AROUND)
    return run_panels(facts.series, facts.marks, facts.directory, view)


def document(title: str, *children: Child, class_: str | None = None) -> str:
    """Return a complete page with the style and the script shared by all our pages."""
    style = _asset("page.css")
    script = _asset("curve.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}';"
        " base-uri 'none'; form-action 'none'"
    )
    about = Markup(
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{style}</style>'
    )
    return html_document(
        title, about, [tag("main", children, class_=class_), Markup(f"<script>{script}</script>")]
    )


@cache
def _asset(name: str) -> str:
    return resources.files("sonde.report.html").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
