"""Figures of benchmarks/RESULTS.md that pages quote: written by `tools/figures.py`, never by hand.

A quoted figure has a comment behind it that says where it is from, and that no reader sees:

    17.6<!-- flight: a step function that does nothing --> µs
    18.5<!-- checkpoint: sonde, 3rd --> ms

The first is the first number after these words in the section `flight` of the results, the second
the third number after them. An … in the words stands for anything on the line.

    33<!-- count: checks -->

is counted in the code.
"""

import re
from pathlib import Path
from typing import Final

from sonde.forensics.checks import CHECKS

PROJECT: Final = Path(__file__).resolve().parents[1]
_QUOTED: Final = re.compile(
    r"(?P<number>[\d.,]*\d)<!-- (?P<section>\w+): (?P<words>.+?)"
    r"(?:, (?P<place>\d)(?:st|nd|rd|th))? -->"
)
_NUMBER: Final = r"[\d.,]*\d"

COUNTS: Final = {"checks": len(CHECKS)}
"""What pages count, by the words of the comment."""


def pages() -> list[Path]:
    """Return the pages that may quote figures."""
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def with_figures(page: str, results: str) -> str:
    """Return a page with its quoted figures as the results have them."""

    def written(quoted: re.Match[str]) -> str:
        place = int(quoted["place"] or 1)
        if quoted["section"] == "count":
            figure = str(COUNTS[quoted["words"]])
        else:
            figure = figure_of(results, quoted["section"], quoted["words"], place)
        return quoted[0].replace(quoted["number"], figure, 1)

    return _QUOTED.sub(written, page)


def figure_of(results: str, section: str, words: str, place: int = 1) -> str:
    """Return the number at a place behind some words of a section. Raises KeyError if it is not
    there.
    """
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", results, re.MULTILINE | re.DOTALL)
    before = re.escape(words).replace("…", ".*?")
    line = text and re.search(rf"^\W*{before}(\W.*)$", text[1], re.MULTILINE)
    numbers = re.findall(_NUMBER, line[1]) if line else []
    if len(numbers) < place:
        raise KeyError(f"the results have no figure {place} behind {words!r} in {section}")
    return str(numbers[place - 1])
