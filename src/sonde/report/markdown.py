"""The report as Markdown, for an issue or a wiki, with sparklines instead of curves.

It is converted from the HTML page, so both say the same. Untrusted text stays text: it is escaped, or put in a fence
that it cannot close.
"""

import math
import re
from collections.abc import Collection, Sequence
from html.parser import HTMLParser
from typing import Final

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
_INLINE: Final = ("span", "b", "code")
_LEFT_OUT: Final = ("svg", "rect", "details", "script")
_BY_CLASS: Final = {"title": "h3", "legend": "svg", "kicker": "svg"}
"""Elements that are treated as another element because of their class."""


def render_markdown(facts: RunFacts) -> str:
    """Render the report as a Markdown document."""
    writer = _Writer()
    writer.feed(group(whole_report(facts, _curves(facts))))
    writer.close()
    lines: list[str] = []
    for part in writer.parts:
        goes_on = part.startswith("- ") and bool(lines) and lines[-1].startswith("- ")
        lines += [part] if goes_on or not lines else ["", part]
    return "\n".join(lines) + "\n"


def escape(text: object) -> str:
    """Return text as one line of Markdown that cannot create an element, link, table, list or heading."""
    return _as_line(_without_signs(visible(str(text))))


def fenced(text: str) -> str:
    """Return multi-line text unchanged inside a fence that it cannot close."""
    shown = visible(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown}\n{fence}"


def table_lines(rows: Sequence[Sequence[str]], *, has_head: bool, right: Collection[int] = ()) -> str:
    """Return a table from escaped cells; `right` holds the indices of numeric columns."""
    width = max(map(len, rows), default=0)
    head, *rest = rows if has_head else [[""] * width, *rows]
    marks = ["--:" if place in right else "---" for place in range(width)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *rest))


def _without_signs(text: str) -> str:
    return _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), text)


def _as_line(text: str) -> str:
    line = " ".join(text.split())
    return _AT_START.sub(lambda match: f"{match[1]}\\{match[2]}" if match[1] else f"\\{match[3]}", line)


def _curves(facts: RunFacts) -> Markup:
    rows = []
    for name, curve in facts.curves.items():
        if len(curve):
            values, finite = curve.values, curve.finite().values
            ends = (values[0], values[-1], *((finite.min(), finite.max()) if len(finite) else (math.nan, math.nan)))
            numbers = [wording.number(float(value)) for value in ends]
            rows.append([name, sparkline(curve), *numbers, str(len(values) - len(finite) or "")])
    columns = ("", "", "first", "last", "lowest", "highest", "not finite")
    drawn = table(columns, rows, right=columns[2:]) if rows else tag("p", "No loss was recorded.")
    return tag("section", tag("h2", "Loss"), drawn)


class _Writer(HTMLParser):
    """Converts the elements of a page to Markdown, without drawings and collapsed details."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self._rows: list[list[str]] = []
        self._right: set[int] = set()
        self._has_head = False
        self._after_inline = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element. A block ends the current line; adjacent inline elements are separated by a dot."""
        given = {name: value or "" for name, value in attrs}
        tag = _BY_CLASS.get(given.get("class", ""), tag)
        is_inline = tag in _INLINE
        if tag in _LEFT_OUT or self._is_within(*_LEFT_OUT):
            self._open.append(tag)
            return
        if is_inline and "pre" in self._open:
            pass  # colours of tokens
        elif is_inline:
            self._text += [" · "] * self._after_inline + ["**"] * (tag == "b")
        elif tag in ("tr", "dt"):
            self._rows.append([])
        elif tag in ("th", "td"):
            self._has_head |= tag == "th"
            self._right |= {len(self._rows[-1])} if given.get("class") == "n" else set()
        elif tag == "li" and self._is_within("table"):
            self._text += [", "] * bool(self._text)
        elif not self._is_within("table", "dl"):
            self._end_line("")
        self._after_inline = False
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close an element and write what it contained."""
        tag = self._open.pop()
        if self._is_within(*_LEFT_OUT) or tag in _LEFT_OUT:
            return
        self._after_inline = tag in _INLINE
        if tag == "b":
            self._text.append("**")
        elif tag in ("th", "td", "dt", "dd"):
            self._rows[-1].append(self._line())
        elif tag in ("table", "dl"):
            self.parts.append(table_lines(self._rows, has_head=self._has_head, right=self._right))
            self._rows, self._right, self._has_head = [], set(), False
        elif tag == "pre":
            self.parts.append(fenced("".join(self._text)))
            self._text = []
        elif tag not in _INLINE and not self._is_within("table", "dl"):
            self._end_line(_HEADS.get(tag, ""))

    def handle_data(self, data: str) -> None:
        """Add text."""
        if not self._is_within(*_LEFT_OUT):
            self._text.append(data if "pre" in self._open else _without_signs(data))
            self._after_inline = False

    def _is_within(self, *names: str) -> bool:
        return not set(names).isdisjoint(self._open)

    def _line(self) -> str:
        text, self._text = "".join(self._text), []
        return _as_line(text.replace("****", "").rstrip("· "))

    def _end_line(self, mark: str) -> None:
        line = self._line()
        self.parts += [mark + line] if line else []
