"""Figures that pages quote are those of the results."""

from pathlib import Path

import figures
import pytest
import quoted_figures

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
    assert quoting == ["any-loop.md"]


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
