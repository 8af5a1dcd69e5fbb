"""HTML elements as values. Everything that is not `Markup` is text and is escaped, so escaping
cannot be forgotten.

    tag("p", "a < b", tag("b", "c"), class_="note")     # <p class="note">a &lt; b<b>c</b></p>
"""

import html
from collections.abc import Iterable
from typing import Final, TypeAlias

from sonde.report import wording
from sonde.report.wording import number, visible

_LONG: Final = 45
_VOID: Final = frozenset(("meta", "br", "link", "input"))
_DRAWN: Final = frozenset(("rect", "circle", "path"))


class Markup(str):
    """A string that is already HTML."""

    __slots__ = ()


Child: TypeAlias = "str | float | Iterable[Child] | None"
"""What an element may contain: text, a number, other elements, an iterable of these, or None."""


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """Return an element. `class_` becomes `class`, `data_from` becomes `data-from`; None and False
    are omitted.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    if name in _DRAWN:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{group(children)}</{name}>")


def _attribute(key: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def group(children: Child) -> Markup:
    """Join several children."""
    if children is None:
        return Markup()
    if isinstance(children, str | int | float):
        return escape(children)
    return Markup("".join(group(child) for child in children))


def escape(value: str | float) -> Markup:
    """Return text as escaped HTML; markup is returned unchanged."""
    return value if isinstance(value, Markup) else Markup(html.escape(visible(str(value))))


def section(title: str, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """Return a section of a page with a title."""
    return tag("section", tag("h2", title), children, **attributes)


def note(text: str, class_: str = "note") -> Markup | None:
    """Return a note, or None if the text is empty."""
    return tag("p", text, class_=class_) if text else None


def left_out(num: int, what: str = "") -> Markup | None:
    """Return a note saying how many items are not shown, or None if all are."""
    return note(f"and {num:,} more{what}" if num > 0 else "")


def moment(seconds: float, **attributes: str | int | bool | None) -> Markup:
    """Return a point in time, in UTC; the script of a page turns it into local time."""
    text = wording.moment(seconds)
    if not text.endswith(" UTC"):  # not a time at all
        return tag("span", text)
    exact = text.removesuffix(" UTC").replace(" ", "T") + "Z"
    return tag("time", text, datetime=exact, **attributes)


def table(
    head: Iterable[str],
    rows: Iterable[Iterable[Child]],
    *,
    right: Iterable[str] = (),
    class_: str = "",
) -> Markup:
    """Return a table that can scroll sideways; `right` names the numeric columns. Empty columns are
    left out.
    """
    numeric = set(right)
    cells = [
        [group(number(cell) if isinstance(cell, int | float) else cell) for cell in row]
        for row in rows
    ]
    kept = [(place, name) for place, name in enumerate(head) if any(row[place] for row in cells)]

    def line(element: str, texts: Iterable[Child]) -> Markup:
        styles = ("n" if name in numeric else None for _, name in kept)
        return tag(
            "tr",
            [tag(element, text, class_=style) for text, style in zip(texts, styles, strict=True)],
        )

    header = None
    if any(name for _, name in kept):
        header = tag("thead", line("th", (name for _, name in kept)))
    body = tag("tbody", [line("td", (row[place] for place, _ in kept)) for row in cells])
    return tag("div", tag("table", header, body, class_=class_ or None), class_="scroll")


def pairs(rows: Iterable[tuple[str, Child]]) -> Markup:
    """Return a list of names and values. Empty values are left out; long ones are marked to get
    their own line.
    """
    shown = []
    for name, value in rows:
        if value:
            pair = [tag("dt", name), tag("dd", value)]
            is_long = max(map(len, pair)) > _LONG
            shown.append(tag("div", pair, class_="long" if is_long else None))
    return tag("dl", shown, class_="pairs")


def bar(share: float, class_: str = "") -> Markup:
    """Return a small bar filled to `share` (0 to 1). An SVG, because the page's policy forbids
    style attributes.
    """
    width = round(100 * min(max(share, 0.0), 1.0), 1) if share == share else 0.0
    track = tag("rect", class_="track", width="100", height="6")
    fill = tag("rect", class_="fill", width=f"{width:g}", height="6")
    shape = {"viewBox": "0 0 100 6", "preserveAspectRatio": "none"}
    return tag("svg", track, fill, class_=f"bar {class_}".strip(), aria_hidden="true", **shape)


def html_document(title: str, about: Child, body: Child) -> str:
    """Return a whole document; `about` is what its head holds besides the title."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        about,
    )
    return f'<!DOCTYPE html>\n<html lang="en">{head}{tag("body", body)}</html>\n'
