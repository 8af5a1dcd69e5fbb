"""The dashboard in a real browser: what was recorded is seen as it was, however it was recorded."""

import time
from pathlib import Path

import pytest
from browser import Browser
from dashboard_pages import DRAWN, LOSS_LINE, click
from dashboard_runs import many_runs
from dashboard_server import serving

from sonde.dashboard.serve import DashboardServer
from sonde.run import Run
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_SEARCHED = 2.1
"""The folder of runs is searched every two seconds."""


def test_epochs_and_iterations_stand_in_a_row(
    page: Browser, server: DashboardServer, folder: Path
) -> None:
    with Run(folder / "epochs") as run:
        for epoch in range(3):
            for iteration in range(100):
                run.logger.log([epoch, iteration], {"loss": 3.0 - epoch})
    time.sleep(_SEARCHED)
    page.open(f"{server.address}run/epochs")
    page.wait_for(DRAWN)
    shown = page.evaluate("({...document.getElementById('curves').dataset})")
    assert (shown["from"], shown["to"]) == ("0", "299")
    across = [float(point.split(" ")[0]) for point in page.evaluate(LOSS_LINE)[1:].split("L")]
    assert across == sorted(across)


def test_a_peak_between_two_logged_values_is_a_dot(
    page: Browser, server: DashboardServer, folder: Path
) -> None:
    with Run(folder / "seldom") as run:
        settings = SpikeSettings(rule=ThresholdRule(above=2.0), grad_norm_rule=None)
        with SpikeRecorder(run.records("spikes"), settings=settings) as recorder:
            for step in range(1, 501):
                loss = 9.0 if step == 333 else 1.0
                recorder.observe(step, loss)
                if step % 50 == 0:
                    run.logger.log(step, {"train/loss": loss})
    time.sleep(_SEARCHED)
    page.open(f"{server.address}run/seldom")
    page.wait_for(DRAWN)
    legend = page.evaluate("document.querySelector('#curves .panel-legend').textContent")
    assert "at events" in legend
    assert "9" in legend


def test_a_damaged_run_looks_damaged_in_the_list_and_on_its_page(
    page: Browser, server: DashboardServer, folder: Path
) -> None:
    with Run(folder / "torn") as run:
        for step in range(1, 101):
            run.logger.log(step, {"loss": 1.0 / step})
    log = folder / "torn" / "records" / "log.rank0.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:40], b"garbage\n", *lines[41:]]))
    time.sleep(_SEARCHED)
    page.open(f"{server.address}?q=torn")
    page.wait_for("document.querySelector('[data-damage=torn]').textContent === '1 damaged line'")
    page.open(f"{server.address}run/torn")
    page.wait_for(DRAWN)
    page.wait_for("document.querySelector('#status .bad') !== null")
    assert "1 damaged line" in page.evaluate("document.getElementById('status').textContent")


def test_sixty_runs_have_a_line_a_colour_and_a_name_each(browser: Browser, tmp_path: Path) -> None:
    many_runs(tmp_path, 60, 200)
    browser.resize(1100, 900)
    with serving(tmp_path) as server:
        query = "&".join(f"run=sweep-{number:03d}" for number in range(60))
        browser.open(f"{server.address}compare?{query}")
        browser.wait_for(DRAWN)
        assert browser.evaluate("document.querySelectorAll('#curves path.curve').length") == 60
        assert browser.evaluate("document.querySelectorAll('#legend [data-toggle]').length") == 60
        colours = browser.evaluate(
            "new Set([...document.querySelectorAll('#curves path.curve')].map((one) =>"
            " getComputedStyle(one).stroke)).size"
        )
        assert colours == 60
        browser.evaluate(
            "(() => { const box = document.getElementById('colour'); box.value = 'dim';"
            " box.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )
        browser.wait_for("document.querySelectorAll('#colour-legend .entry').length === 3")
        assert "colour=dim" in browser.evaluate("location.search")
        assert browser.complaints == []
        browser.open("about:blank")  # so that nothing asks a server that has ended


def test_the_list_is_sorted_both_ways_by_clicks(page: Browser, server: DashboardServer) -> None:
    page.open(f"{server.address}?q=small")
    first = "document.querySelector('tbody tr[data-key]').dataset.key"
    sort_by_loss = "th a[href*='sort=loss'], th a[href*='sort=-loss']"
    click(page, sort_by_loss)
    page.wait_for(f"{first} === 'small-0'")
    click(page, sort_by_loss)
    page.wait_for(f"{first} === 'small-2'")
    assert "sort=-loss" in page.evaluate("location.search")
