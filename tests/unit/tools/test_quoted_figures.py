"""Figures that pages quote are those of the results."""

import re
from pathlib import Path

import figures
import pytest
import quoted_figures

from sonde.forensics.checks import CHECKS

RESULTS = """# Benchmarks

## flight

| what a step costs | µs |
| a step that does nothing | 17.6 |

## checkpoint

sonde                         18.5        20.1     18.4
| host | with it | +1,136 |
"""


@pytest.mark.parametrize("page", quoted_figures.pages(), ids=lambda page: page.name)
def test_a_page_quotes_the_figures_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    results = figures.RESULTS.read_text(encoding="utf-8")
    assert quoted_figures.with_figures(text, results) == text, "run tools/figures.py"


def test_some_pages_quote_figures() -> None:
    quoting = [page.name for page in quoted_figures.pages() if "<!-- flight: " in page.read_text()]
    assert quoting == ["README.md", "any-loop.md"]


def test_a_count_is_that_of_the_code() -> None:
    page = "some 30<!-- count: checks --> checks"
    assert quoted_figures.with_figures(page, RESULTS) == page.replace("30", str(len(CHECKS)))


def test_the_page_of_checks_lists_every_check() -> None:
    page = (quoted_figures.PROJECT / "docs" / "check.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+\?) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(check.name, check.question, check.applies_to) for check in CHECKS]


def test_healing_has_the_losses_of_the_results() -> None:
    page = (quoted_figures.PROJECT / "docs" / "heal.md").read_text(encoding="utf-8")
    results = figures.RESULTS.read_text(encoding="utf-8").partition("\n## heal\n")[2]
    rows = re.findall(r"^\| (.+?) \| " + r"(\w.*?) \| " * 5 + r".*", results, re.MULTILINE)
    ways = ["nothing", "clip", "olmo", "lightning", "heal"]
    found = {(row[0], row[1]): f"{row[4]} ({row[2]})" for row in rows}
    faults = [row[0] for row in rows if row[1] == "heal"][:6]
    table = [f"| {fault} | {' | '.join(found[fault, way] for way in ways)} |" for fault in faults]
    assert "\n".join(table) in page


def test_the_diagnosis_has_the_tables_of_the_results() -> None:
    page = (quoted_figures.PROJECT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    results = figures.RESULTS.read_text(encoding="utf-8").partition("\n## diagnosis\n")[2]
    calibration = re.search(r"^\| 0\.9 and more .*\n(?:\|.*\n)+", results, re.MULTILINE)
    by_rows = re.search(r"^\| three quarters .*\n(?:\|.*\n)+", results, re.MULTILINE)
    assert calibration
    assert by_rows
    assert calibration[0].strip() in page
    assert by_rows[0].strip() in page


def test_a_quoted_figure_is_replaced_and_its_source_stays() -> None:
    page = "12<!-- flight: a step that does nothing --> µs, 3<!-- checkpoint: sonde, 3rd --> ms"
    shown = quoted_figures.with_figures(page, RESULTS)
    assert shown == page.replace("12<", "17.6<").replace(" 3<", " 18.4<")


def test_words_may_leave_something_out() -> None:
    assert quoted_figures.figure_of(RESULTS, "checkpoint", "host…with it") == "1,136"


@pytest.mark.parametrize("words", ["sonde, in parts", "a step that does nothing"])
def test_a_figure_that_is_not_there_is_an_error(words: str) -> None:
    with pytest.raises(KeyError, match="have no figure"):
        quoted_figures.figure_of(RESULTS, "checkpoint", words)
