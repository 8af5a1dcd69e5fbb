"""The result of `sonde check` as HTML, for the dashboard: what is wrong first, then the rest, then
two rows as the model sees them.
"""

from itertools import zip_longest
from typing import Final

from sonde.forensics.checks.check_report import CheckReport, RowPicture
from sonde.forensics.checks.check_rule import CheckResult, Status
from sonde.report import wording
from sonde.report.html.markup import Child, Markup, note, section, table, tag

_OTHERS: Final[tuple[Status, ...]] = ("cannot tell", "does not apply", "fine")
_NOTHING: Final = "·"


def check_results(report: CheckReport) -> Child:
    """Render every result of a check."""
    num_wrong = len(report.wrong)
    found = f"{num_wrong} wrong" if num_wrong else "nothing is wrong"
    how = "bad" if num_wrong else "good"
    facts = (
        f"{len(report.results)} checks after {report.num_updates} updates,"
        f" in {wording.duration(report.seconds)}."
    )
    head = tag("p", tag("span", found, class_=f"status {how}"), f" {facts}", class_="state")
    others = [_listed(status, report.of(status)) for status in _OTHERS]
    return [head, [_wrong(result) for result in report.wrong], others, _rows(report.rows)]


def _wrong(result: CheckResult) -> Markup:
    advice = tag("p", tag("b", "What to do: "), result.advice) if result.advice else None
    title = f"Wrong: {result.title}"
    return section(title, tag("p", result.text), advice, class_="verdict", id=result.name)


def _listed(status: Status, results: list[CheckResult]) -> Markup | None:
    if not results:
        return None
    rows = [(result.title, result.text) for result in results]
    return section(status.capitalize(), table(("check", "answer"), rows))


def _rows(rows: tuple[RowPicture, ...]) -> Markup | None:
    """Render the first positions of rows: what goes in, and below it what is asked for."""
    if not rows:
        return None
    drawn = []
    for row in rows:
        pairs = list(zip_longest(row.inputs, row.targets, fillvalue=""))
        given: list[Child] = ["goes in", *(tag("code", first) for first, _ in pairs)]
        asked: list[Child] = ["is asked for", *(_asked(second) for _, second in pairs)]
        drawn.append(table(("", *[""] * len(pairs)), [given, asked]))
    legend = note(f"{_NOTHING} does not count.")
    return section("Two rows as the model sees them", drawn, legend)


def _asked(token: str) -> Child:
    return tag("code", token) if token else _NOTHING
