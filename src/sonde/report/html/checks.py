"""The result of `sonde check` as HTML, for the dashboard: what is wrong first, then the rest, then
two rows as the model sees them.
"""

from typing import Final

from sonde.forensics.checks.check_report import CheckReport, row_lines
from sonde.forensics.checks.check_rule import CheckResult, Status
from sonde.report import wording
from sonde.report.html.markup import Child, Markup, section, table, tag

_OTHERS: Final[tuple[Status, ...]] = ("cannot tell", "does not apply", "fine")


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
    wrong = [_wrong(result) for result in report.wrong]
    return [head, wrong, _others(report), _rows(report)]


def _wrong(result: CheckResult) -> Markup:
    advice = tag("p", tag("b", "What to do: "), result.advice) if result.advice else None
    title = f"Wrong: {result.title}"
    return section(title, tag("p", result.text), advice, class_="verdict", id=result.name)


def _others(report: CheckReport) -> Markup | None:
    rows = []
    for status in _OTHERS:
        rows += [(result.title, status, result.text) for result in report.of(status)]
    if not rows:
        return None
    return section("The other checks", table(("check", "result", "answer"), rows))


def _rows(report: CheckReport) -> Markup | None:
    lines = row_lines(report.rows)
    if not lines:
        return None
    title, *rest = lines
    drawn = tag("pre", "\n".join(rest), class_="log", tabindex="0")
    return section(f"{title[0].upper()}{title[1:]}", drawn)
