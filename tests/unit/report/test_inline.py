"""A run in a cell of a notebook."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

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
    assert 'sandbox="allow-scripts allow-downloads"' in cell
    source = cell.partition('srcdoc="')[2].partition('"')[0]
    assert html.unescape(source).startswith("<!DOCTYPE html>")
    assert "Content-Security-Policy" in source
    assert "the worst 5 of 5 samples" in source


def test_where_there_is_no_notebook_it_is_a_line_of_text(
    eventful_run: Path, tmp_path: Path
) -> None:
    assert "1 event, loss █" in repr(sonde.show(str(eventful_run)))
    with sonde.Run(tmp_path / "run") as run:
        assert repr(sonde.show(run)) == "run: running, no step yet, 0 events, no loss"


def test_what_it_holds_is_at_hand(eventful_run: Path) -> None:
    assert sonde.show(eventful_run).facts.events == gather(eventful_run).events


def test_a_cell_has_the_name_the_status_and_the_verdict_first(eventful_run: Path) -> None:
    cell = html.unescape(sonde.show(eventful_run)._repr_html_())
    places = [
        cell.index(part)
        for part in (
            "<h1>",
            'class="status bad">finished',
            "Step 300: <b>Sample 3 of train",
            "<h2>Loss",
        )
    ]
    assert places == sorted(places)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_cell_follows_a_run_while_it_goes_on(tmp_path: Path) -> None:
    code = f"""
import time
import nbclient
import nbformat
import pytest

import sonde
from IPython.display import display
with sonde.Run({str(tmp_path / "run")!r}) as run:
    run.logger.log(1, {{"loss": 5.0}})
    display(sonde.show(run, live=True))
    for step in range(2, 40):
        run.logger.log(step, {{"loss": 5.0 / step}})
        time.sleep(0.15)
"""
    cell = {"cell_type": "code", "id": "a", "source": code, "metadata": {}, "outputs": []}
    written = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    read: Any = nbformat.reads  # it has no types
    notebook = read(json.dumps(written), as_version=4)
    nbclient.NotebookClient(notebook, timeout=90, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    shown = html.unescape(output["data"]["text/html"])
    steps = int(re.search(r"last step</span><b>(\d+)</b>", shown)[1])  # type: ignore[index]
    assert steps > 10  # as it was two seconds before the end, or later
    assert "no step" not in output["data"]["text/plain"]
