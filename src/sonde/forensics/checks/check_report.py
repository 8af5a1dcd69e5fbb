"""The report of `sonde check`: every result, and two rows as the model sees them; as plain data, as
JSON (docs/formats/check.md), and as a text of 80 columns.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from sonde.forensics.checks.check_rule import CheckResult, Status

FORMAT: Final = "sonde-check"
VERSION: Final = 1
_WIDTH: Final = 80
_TITLES: Final[dict[Status, str]] = {
    "wrong": "wrong",
    "cannot tell": "cannot tell",
    "does not apply": "does not apply",
    "fine": "fine",
}
_MAX_TOKEN: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPicture:
    """The first positions of one row as the model sees them."""

    inputs: tuple[str, ...]
    """The tokens that go in."""
    targets: tuple[str, ...]
    """What is asked for at each position; empty where nothing counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    """The results of all checks."""

    results: tuple[CheckResult, ...]
    rows: tuple[RowPicture, ...] = ()
    num_updates: int = 0
    """How many updates the script made before the checks."""
    seconds: float = 0.0
    """How long the experiments took."""

    @property
    def wrong(self) -> tuple[CheckResult, ...]:
        """What is wrong."""
        return tuple(result for result in self.results if result.status == "wrong")

    def of(self, status: Status) -> list[CheckResult]:
        """Return the results of one status."""
        return [result for result in self.results if result.status == status]

    def document(self) -> dict[str, Any]:
        """Return the report as plain data with its format and version."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "num_updates": self.num_updates,
            "seconds": round(self.seconds, 3),
            "results": [
                {
                    "name": result.name,
                    "title": result.title,
                    "status": result.status,
                    "text": result.text,
                    "advice": result.advice,
                }
                for result in self.results
            ],
            "rows": [
                {"inputs": list(row.inputs), "targets": list(row.targets)} for row in self.rows
            ],
        }

    def text(self) -> str:
        """Return the report for people: what is wrong first, then what could not be told, then what
        does not apply, then what is fine.
        """
        lines = [self._headline(), ""]
        for result in self.wrong:
            lines += _wrapped(f"WRONG  {result.title}: {result.text}", hanging=7)
            lines += _wrapped(f"       → {result.advice}", hanging=9)
            lines.append("")
        for status in ("cannot tell", "does not apply", "fine"):
            found = self.of(status)
            if not found:
                continue
            lines.append(f"{_TITLES[status]}:")
            for titles, text in _by_text(found):
                lines += _wrapped(f"  {titles}: {text}", hanging=4)
            lines.append("")
        lines += row_lines(self.rows)
        return "\n".join(lines).rstrip() + "\n"

    def _headline(self) -> str:
        num_wrong = len(self.wrong)
        found = "nothing is wrong" if not num_wrong else f"{num_wrong} wrong"
        answered = num_wrong + len(self.of("fine"))
        return (
            f"{len(self.results)} checks after {self.num_updates} updates: {found},"
            f" {answered} answered ({self.seconds:.1f} s)"
        )


def report_of(document: dict[str, Any]) -> CheckReport:
    """Return the report that `document` describes."""
    return CheckReport(
        results=tuple(CheckResult(**result) for result in document["results"]),
        rows=tuple(
            RowPicture(inputs=tuple(row["inputs"]), targets=tuple(row["targets"]))
            for row in document["rows"]
        ),
        num_updates=document["num_updates"],
        seconds=document["seconds"],
    )


def _by_text(results: Sequence[CheckResult]) -> list[tuple[str, str]]:
    """Return titles and texts; those with the same text together."""
    titles: dict[str, list[str]] = {}
    for result in results:
        titles.setdefault(result.text, []).append(result.title)
    return [(", ".join(names), text) for text, names in titles.items()]


def _wrapped(text: str, hanging: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * hanging, break_long_words=False)


def row_lines(rows: Sequence[RowPicture]) -> list[str]:
    """Return a title, and rows with what is asked for below what goes in, as far as 80 columns hold
    it.
    """
    if not rows:
        return []
    lines = ["two rows: what goes in, and below it what is asked for (· does not count)"]
    for row in rows:
        above = "  in   "
        below = "  asked"
        for given, asked in zip_longest(row.inputs, row.targets, fillvalue=""):
            first = _shown(given)
            second = _shown(asked) if asked else "·"
            width = max(len(first), len(second))
            if len(above) + width + 1 > _WIDTH:
                break
            above += f" {first:<{width}}"
            below += f" {second:<{width}}"
        lines += [above.rstrip(), below.rstrip()]
    return [*lines, ""]


def _shown(token: str) -> str:
    """Return a token without anything that breaks a line."""
    plain = token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣").replace("\r", "⏎")
    return plain[:_MAX_TOKEN]
