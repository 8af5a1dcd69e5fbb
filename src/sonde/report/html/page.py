"""The whole report as one HTML document. It may run one script and use one style, both named by their digests, and load nothing."""

import base64
import hashlib
from functools import cache
from importlib import resources

from sonde.report import wording
from sonde.report.facts import RunFacts
from sonde.report.html.curves import curves
from sonde.report.html.events import events, worst_samples
from sonde.report.html.markup import Child, Markup, tag
from sonde.report.html.overview import checkpoints, head, healing, notices, settings, speed
from sonde.report.html.tensors import tensors
from sonde.report.html.verdict import verdicts


def render_html(facts: RunFacts) -> str:
    """The document."""
    return document(f"{facts.name} – sonde report", sections(facts, curves(facts)))


def sections(facts: RunFacts, drawn: Child) -> list[Child]:
    """Everything that is told, the curves as they were `drawn`."""
    return [
        head(facts),
        notices(facts),
        healing(facts),
        verdicts(facts.verdicts),
        drawn,
        events(facts.events),
        worst_samples(facts),
        tensors(facts.verdicts),
        speed(facts),
        checkpoints(facts),
        settings(facts),
        tag("footer", f"Made by sonde {facts.version} on {wording.moment(facts.made)}"),
    ]


def render_short(facts: RunFacts) -> str:
    """Only curves and events, for a cell of a notebook."""
    return document(facts.name, curves(facts), events(facts.events))


def document(title: str, *children: Child) -> str:
    """A page of its own, with the style and the script of all our pages."""
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
