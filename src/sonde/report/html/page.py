"""The whole report as one HTML document, and a run in a notebook cell (`sonde.show`).

The policy of a page allows one script and one style, by digest, nothing else.
"""

import base64
import hashlib
import time
from functools import cache
from importlib import resources
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import orjson

from sonde.report import wording
from sonde.report.curve import sparkline
from sonde.report.facts import RunFacts, gather
from sonde.report.html import sections
from sonde.report.html.markup import Child, Markup, html_document, note, section, tag
from sonde.report.run_curves import LOSS, Stretch, run_data
from sonde.version import __version__

if TYPE_CHECKING:
    from sonde.run import Run

MAX_POINTS: Final = 4000
"""Points of a curve; all of them around events: about 50 kB per curve, however long the run."""
_STEPS_AROUND: Final = 40
"""Number of steps before and after an event that are kept without thinning."""


def render_html(facts: RunFacts) -> str:
    """Render the report as an HTML document."""
    return document(f"{facts.directory.name} – sonde report", whole_report(facts, curves(facts)))


def whole_report(facts: RunFacts, drawn: Child) -> list[Child]:
    """Return all sections of the report; `drawn` is the section with the curves."""
    return [
        sections.head(facts),
        sections.notices(facts),
        sections.healing(facts),
        map(sections.verdict, facts.verdicts),
        drawn,
        sections.events(facts.events),
        sections.worst_samples(facts.worst),
        map(sections.tensors, facts.verdicts),
        sections.speed(facts),
        sections.checkpoints(facts),
        sections.settings(facts),
        tag("footer", f"Made by sonde {__version__} on {wording.moment(time.time())}"),
    ]


def show(run: "str | PathLike[str] | Run") -> "InlineRun":
    """Show a run, or the run in a directory, in its current state; a notebook displays it as a cell's last value."""
    directory: Any = getattr(run, "directory", run)
    return InlineRun(gather(directory))


class InlineRun:
    """The facts about a run: its curves and events in a notebook, or one line of text elsewhere.

    The page is in a sandboxed frame that may only run its own script and cannot reach the notebook.
    """

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        """The facts as plain data."""

    def _repr_html_(self) -> str:
        page = document(self.facts.directory.name, curves(self.facts), sections.events(self.facts.events))
        # Not through `tag`, which would replace invisible characters: the page itself is already escaped.
        source = page.replace("&", "&amp;").replace('"', "&quot;")
        title = f"run {self.facts.directory.name}"
        frame = tag("iframe", sandbox="allow-scripts", width="100%", height=640, title=title)
        return frame.replace("<iframe ", f'<iframe frameborder="0" srcdoc="{source}" ', 1)

    def __repr__(self) -> str:
        facts = self.facts
        loss = facts.curves.get(LOSS)
        drawn = f"loss {sparkline(loss)} {wording.number(float(loss.values[-1]))}" if loss else "no loss"
        told = f"{facts.status}, step {wording.number(facts.last_step)}, {len(facts.events)} events, {drawn}"
        return f"{facts.directory.name}: {told}"


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
    events = [one.spike.event for one in facts.events]
    return run_data(facts.series, events, Stretch(None, None, MAX_POINTS), reach=_STEPS_AROUND)


def document(title: str, *children: Child) -> str:
    """Return a complete page with the style and the script shared by all our pages."""
    style, script = _asset("page.css"), _asset("curve.js")
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    about = Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{style}</style>')
    return html_document(title, about, [tag("main", children), Markup(f"<script>{script}</script>")])


@cache
def _asset(name: str) -> str:
    return resources.files("sonde.report.html").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
