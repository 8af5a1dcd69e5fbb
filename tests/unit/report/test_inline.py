"""A run in a cell of a notebook."""

import html
from html.parser import HTMLParser
from pathlib import Path

import sonde
from sonde.report.facts import gather


class Elements(HTMLParser):
    """The elements that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)


def test_a_run_is_shown_in_a_frame_that_can_only_run_its_own_script(eventful_run: Path) -> None:
    shown = sonde.show(eventful_run)
    cell = shown._repr_html_()
    assert Elements(cell).names == ["iframe"]  # all else is inside its attribute
    assert 'sandbox="allow-scripts"' in cell
    source = cell.partition('srcdoc="')[2].partition('"')[0]
    assert html.unescape(source).startswith("<!DOCTYPE html>")
    assert "Content-Security-Policy" in source
    assert "the worst 5 of 5 samples" in source


def test_where_there_is_no_notebook_it_is_a_line_of_text(eventful_run: Path, tmp_path: Path) -> None:
    assert "1 events, loss █" in repr(sonde.show(str(eventful_run)))
    with sonde.Run(tmp_path / "run") as run:
        assert repr(sonde.show(run)) == "run: running, step , 0 events, no loss"


def test_what_it_holds_is_at_hand(eventful_run: Path) -> None:
    assert sonde.show(eventful_run).facts.events == gather(eventful_run).events
