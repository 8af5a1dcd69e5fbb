"""Foreign text inside Markdown: it stays text, on one line, whatever it says. Pure."""

import re
from collections.abc import Iterable
from typing import Final

from sonde.report.wording import visible

_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SPECIAL: Final = re.compile(r"[\\`*_{}\[\]()#|~$!&<>]|:(?=//)|(?<=www)\.")
_AT_START: Final = re.compile(r"^(\d{1,9})([.)])(?=\s|$)|^([-+=])")


def escape(text: object) -> str:
    """Text as one line of Markdown: no element, link, table, list or heading of its own making."""
    line = " ".join(visible(str(text)).split())
    line = _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), line)
    return _AT_START.sub(lambda match: f"{match[1]}\\{match[2]}" if match[1] else f"\\{match[3]}", line)


def fenced(text: str) -> str:
    """Text of several lines, as it is, within a fence that it cannot close."""
    shown = visible(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown}\n{fence}"


def table(head: Iterable[str], rows: Iterable[Iterable[object]], *, right: Iterable[str] = ()) -> str:
    """A table; its cells are escaped. The columns named in `right` hold numbers."""
    names, numeric = list(head), set(right)
    lines = [_row(names), _row(["--:" if name in numeric else "---" for name in names])]
    lines += [_row([escape(cell) for cell in row]) for row in rows]
    return "\n".join(lines)


def bullets(sentences: Iterable[object]) -> str:
    """A list, one line each."""
    return "\n".join(f"- {escape(one)}" for one in sentences)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
