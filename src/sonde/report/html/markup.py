"""Elements of HTML as values. Whatever is not one of them is text, and escaped: to forget it is not possible.

tag("p", "a < b", tag("b", name), class_="note")     <p class="note">a &lt; b<b>…</b></p>
"""

import html
from collections.abc import Iterable
from typing import Final, TypeAlias, final

from sonde.report.wording import number, visible

_LONG: Final = 45
_VOID: Final = frozenset(("meta", "br", "link", "input"))
_DRAWN: Final = frozenset(("rect", "circle", "path"))


@final
class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | float | Iterable[Child] | None"
"""What may stand inside an element: text, a number, other elements, several of them, or nothing."""


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element. `class_` is `class`, `data_from` is `data-from`; an attribute that is None or False is left out."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID or name in _DRAWN:
        return Markup(f"<{name}{written}>" if name in _VOID else f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{group(children)}</{name}>")


def group(children: Child) -> Markup:
    """Several children, one after the other."""
    if children is None:
        return Markup()
    if isinstance(children, str | int | float):
        return escape(children)
    return Markup("".join(group(child) for child in children))


def escape(value: str | float) -> Markup:
    """Text as HTML; markup stays as it is."""
    return value if isinstance(value, Markup) else Markup(html.escape(visible(str(value))))


def section(title: str, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """A part of a page, under its title."""
    return tag("section", tag("h2", title), children, **attributes)


def note(text: str, class_: str = "note") -> Markup | None:
    """A remark; none without a text."""
    return tag("p", text, class_=class_) if text else None


def left_out(num: int, what: str = "") -> Markup | None:
    """How many more there are than are shown, if any."""
    return note(f"and {num:,} more{what}" if num > 0 else "")


def table(
    head: Iterable[str], rows: Iterable[Iterable[Child]], *, right: Iterable[str] = (), class_: str = ""
) -> Markup:
    """A table that may be wider than its page; the columns named in `right` hold numbers. Columns with nothing in them are left out."""
    numeric = set(right)
    cells = [[group(number(cell) if isinstance(cell, int | float) else cell) for cell in row] for row in rows]
    kept = [(place, name) for place, name in enumerate(head) if any(row[place] for row in cells)]

    def line(element: str, texts: Iterable[Child]) -> Markup:
        styles = ("n" if name in numeric else None for _, name in kept)
        return tag("tr", [tag(element, text, class_=style) for text, style in zip(texts, styles, strict=True)])

    header = tag("thead", line("th", (name for _, name in kept))) if any(name for _, name in kept) else None
    body = tag("tbody", [line("td", (row[place] for place, _ in kept)) for row in cells])
    return tag("div", tag("table", header, body, class_=class_ or None), class_="scroll")


def pairs(rows: Iterable[tuple[str, Child]]) -> Markup:
    """Names and values; those without a value are left out, and long ones marked, for a line of their own."""
    made = [(tag("dt", name), tag("dd", value)) for name, value in rows if value]
    shown = [tag("div", one, class_="long" if max(map(len, one)) > _LONG else None) for one in made]
    return tag("dl", shown, class_="pairs")


def bar(share: float, class_: str = "") -> Markup:
    """A small bar, filled as far as `share` (0 to 1) says. Drawn, because the policy of the page allows no style attributes."""
    width = round(100 * min(max(share, 0.0), 1.0), 1) if share == share else 0.0
    track = tag("rect", class_="track", width="100", height="6")
    fill = tag("rect", class_="fill", width=f"{width:g}", height="6")
    return picture([track, fill], f"bar {class_}".strip(), "0 0 100 6")


def picture(shapes: Iterable[Markup], class_: str, box: str) -> Markup:
    """Shapes that fill their place, whatever its form; for eyes only."""
    return tag("svg", shapes, class_=class_, viewBox=box, preserveAspectRatio="none", aria_hidden="true")
