"""The report as Markdown, for an issue or a wiki, with sparklines instead of curves: made from the
HTML parts, so both say the same.

Untrusted text stays text: it is escaped,
or put in a fence that it cannot close.
"""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final
from xml.etree.ElementTree import Element, fromstring

from sonde.report import wording
from sonde.report.curve import sparkline
from sonde.report.facts import RunFacts
from sonde.report.html.markup import Markup, group, table, tag
from sonde.report.html.page import whole_report
from sonde.report.wording import visible

_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SPECIAL: Final = re.compile(r"[\\`*_{}\[\]()#|~$!&<>]|:(?=//)|(?<=www)\.")
_AT_START: Final = re.compile(r"^(\d{1,9})([.)])(?=\s|$)|^([-+=])")
_HEADS: Final = {"h1": "# ", "h2": "## ", "h3": "### ", "h4": "#### ", "li": "- "}
_INLINE: Final = ("span", "b", "code", "svg", "time")
_LEFT_OUT: Final = ("svg", "details")
_BY_CLASS: Final = {"legend": "svg", "kicker": "svg"}
"""Elements that are treated as another element because of their class."""


def render_markdown(facts: RunFacts) -> str:
    """Render the report as a Markdown document.

    ```python
    from sonde import Run
    from sonde.report import gather, render_markdown

    with Run("runs/mine") as run:
        for step in range(1, 101):
            run.logger.log(step, {"loss": 5 / step})
    print(render_markdown(gather("runs/mine")))
    ```
    """
    # our own markup
    page = fromstring(f"<main>{group(whole_report(facts, _curves(facts)))}</main>")  # noqa: S314
    lines: list[str] = []
    for part in _parts(page):
        goes_on = part.startswith("- ") and bool(lines) and lines[-1].startswith("- ")
        lines += [part] if goes_on or not lines else ["", part]
    return "\n".join(lines) + "\n"


def escape(text: object) -> str:
    """Return text as one line of Markdown that cannot create an element, link, table, list or
    heading.
    """
    return _as_line(_without_signs(visible(str(text))))


def fenced(text: str) -> str:
    """Return multi-line text unchanged inside a fence that it cannot close."""
    shown = visible(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown}\n{fence}"


def table_lines(
    rows: Sequence[Sequence[str]], *, has_head: bool, right: Collection[int] = ()
) -> str:
    """Return a table from escaped cells; `right` holds the indices of numeric columns."""
    width = max(map(len, rows), default=0)
    if not has_head:
        rows = [[""] * width, *rows]
    head, *rest = rows
    rule = ["--:" if place in right else "---" for place in range(width)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rest))


def _without_signs(text: str) -> str:
    return _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), text)


def _as_line(text: str) -> str:
    line = " ".join(text.split())
    return _AT_START.sub(
        lambda match: f"{match[1]}\\{match[2]}" if match[1] else f"\\{match[3]}", line
    )


def _curves(facts: RunFacts) -> Markup:
    rows = []
    for name, curve in facts.curves.items():
        if len(curve):
            values = curve.values
            finite = curve.finite().values
            ends = (
                values[0],
                values[-1],
                *((finite.min(), finite.max()) if len(finite) else (math.nan, math.nan)),
            )
            numbers = [wording.number(float(value)) for value in ends]
            rows.append([name, sparkline(curve), *numbers, str(len(values) - len(finite) or "")])
    columns = ("", "", "first", "last", "lowest", "highest", "not finite")
    drawn = table(columns, rows, right=columns[2:]) if rows else tag("p", "No loss was recorded.")
    return tag("section", tag("h2", "Loss"), drawn)


def _parts(node: Element) -> Iterator[str]:
    """Yield the lines, tables and fences of an element, without drawings and collapsed details."""
    name = _BY_CLASS.get(node.get("class", ""), node.tag)
    if name in _LEFT_OUT:
        return
    if name == "pre":
        yield fenced("".join(node.itertext()))
    elif name in ("table", "dl"):
        cells: list[list[str]] = []
        right: set[int] = set()
        for row in node.iter("tr") if name == "table" else node:
            cells.append([_line(cell) for cell in row])
            right |= {place for place, cell in enumerate(row) if cell.get("class") == "n"}
        yield table_lines(cells, has_head=node.find("thead") is not None, right=right)
    elif any(child.tag not in _INLINE for child in node):
        for child in node:
            yield from _parts(child)
    elif line := _line(node):
        yield _HEADS.get(name, "") + line


def _line(node: Element) -> str:
    return _as_line(_inline(node).rstrip("· "))


def _inline(node: Element) -> str:
    """Return the text in an element; elements side by side are separated by a dot, items of a list
    by a comma.
    """
    text = _without_signs(node.text or "")
    is_after = False
    for child in node:
        if child.tag not in _LEFT_OUT:
            if is_after:
                text += ", " if child.tag == "li" else " · "
            inner = _inline(child)
            text += f"**{inner}**" if child.tag == "b" and inner else inner
            is_after = True
        if child.tail:
            text += _without_signs(child.tail)
            is_after = False
    return text
