"""What all pages share: the surrounding document, URLs, and small parts."""

import hashlib
import math
import time
from collections.abc import Iterable
from functools import cache
from importlib import resources
from urllib.parse import quote, urlencode

from sonde.errors import SettingError
from sonde.report import wording
from sonde.report.curve import Curve, thin
from sonde.report.html.markup import Child, Markup, html_document, moment, tag


@cache
def assets() -> dict[str, tuple[str, bytes]]:
    """Return all files that are served, by name, with their type and content. No other file can be
    requested.
    """
    ours = resources.files("sonde.dashboard") / "static"
    shared = resources.files("sonde.report.html")
    style = (shared / "page.css").read_bytes() + (ours / "dashboard.css").read_bytes()
    script = (ours / "dashboard.js").read_bytes()
    return {"dashboard.js": ("text/javascript", script), "dashboard.css": ("text/css", style)}


@cache
def _asset_address(name: str) -> str:
    return f"/static/{name}?v={hashlib.sha256(assets()[name][1]).hexdigest()[:12]}"


def document(title: str, *body: Child, live: str | None = None) -> str:
    """Return a whole page. `live` is the run that it follows."""
    about = [
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href=_asset_address("dashboard.css")),
        tag("script", src=_asset_address("dashboard.js"), defer=True),
    ]
    content = tag("main", body, id="main", tabindex="-1", data_live_run=live)
    skip = tag("a", "Skip to the content", href="#main", class_="skip")
    trouble = tag("div", "", id="trouble", role="status", hidden=True)
    return html_document(f"{title} – sonde" if title else "sonde", about, [skip, trouble, content])


def run_address(name: str, *parts: str, **query: str) -> str:
    """Return the URL of a run, or of a part of it."""
    path = "/".join(["/run", *(quote(part) for part in (name, *parts) if part)])
    return f"{path}?{urlencode(query)}" if query else path


def crumbs(*parts: Child) -> Markup:
    """Return the breadcrumbs back to the list of runs."""
    between = tag("span", "/", class_="sep", aria_hidden="true")
    after = [[between, part] for part in parts]
    return tag("nav", tag("a", "runs", href="/"), after, class_="crumbs", aria_label="way back")


def here(text: str) -> Markup:
    """Return the last breadcrumb: the page itself."""
    return tag("span", text, aria_current="page")


def ago(seconds: float) -> Markup:
    """Return how long ago a point in time was; the script counts on."""
    shown = f"{wording.duration(max(time.time() - seconds, 0.0))} ago"
    exact = moment(seconds, data_ago=True)
    return Markup(exact.replace(f">{wording.moment(seconds)}<", f">{shown}<"))


def spark(curve: Curve | None) -> Markup:
    """Return a curve as a small picture without labels; no peak is lost."""
    if curve is None or len(thinned := thin(curve, 160)) < 2:
        return tag("span", "", class_="spark")
    low = float(thinned.values.min())
    high = float(thinned.values.max())
    first = int(thinned.steps[0])
    last = int(thinned.steps[-1])
    room = (high - low) or 1.0
    path = "M" + "L".join(
        f"{120 * (step - first) / max(last - first, 1):.1f} {25 - 24 * (value - low) / room:.1f}"
        for step, value in zip(thinned.steps.tolist(), thinned.values.tolist(), strict=True)
    )
    label = (
        f"loss from {wording.number(float(thinned.values[0]))} to"
        f" {wording.number(float(thinned.values[-1]))}"
    )
    return tag(
        "svg",
        tag("path", d=path),
        class_="spark",
        viewBox="0 0 120 26",
        role="img",
        aria_label=label,
    )


def commands(lines: Iterable[tuple[str, str]]) -> Markup:
    """Return a list of commands to copy, each with a description."""
    rows = []
    for text, command in lines:
        button = tag("button", "copy", type="button", data_copy=command, aria_label=f"copy: {text}")
        rows.append(tag("li", tag("span", text, class_="does"), tag("code", command), button))
    return tag("ul", rows, class_="commands")


def choice(
    name: str, text: str, options: Iterable[tuple[str, str]], chosen: str, **attributes: str
) -> Markup:
    """Return a list to choose from, of (value, label) pairs. The script puts the choice into the
    URL.
    """
    made = [tag("option", label, value=value, selected=value == chosen) for value, label in options]
    return tag(
        "label",
        text,
        tag("select", made, id=name, name=name, aria_label=text.strip() or name, **attributes),
    )


def number(text: str | None, otherwise: float | None) -> float | None:
    """Return the number in a part of a URL; raise SettingError if it is none."""
    if text is None or text == "":
        return otherwise
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise SettingError(f"{text!r:.50} is no number")
    return found


def whole(text: str | None, otherwise: int | None = None) -> int:
    """Return the whole number in a part of a URL; raise SettingError if it is none."""
    found = number(text, None if otherwise is None else float(otherwise))
    if found is None or not 0 <= found < 2**53:
        raise SettingError(f"{text!r:.50} is not a whole number from 0 on")
    return int(found)
