"""The dashboard in a real browser, over a run of a million steps and over small ones. Figures with
peers beside them: benchmarks/dashboard.py.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from dashboard_pages import DRAWN, LOSS_LINE, addresses, query, type_text
from dashboard_runs import NUM_SPIKES, step_line
from eventful_run import HOSTILE, SPIKE_STEP

from sonde.dashboard.serve import DashboardServer
from sonde.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_million_steps_are_there_at_once_with_every_spike(
    folder: Path, spikes: list[int], browser: Browser
) -> None:
    command = [sys.executable, "-m", "sonde", "dashboard", str(folder), "--no-open", "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+/", process.stdout.readline())
        assert address is not None
        browser.open(f"{address[0]}run/long")
        browser.wait_for(DRAWN, 90)  # read for the first time, and indexed
        browser.wait_for("document.getElementById('figures').textContent.includes('1,000,000')", 90)
        seconds = []
        transferred = []
        for _ in range(5):
            browser.call("Network.clearBrowserCache")
            browser.open("about:blank")
            browser.open(f"{address[0]}run/long")
            browser.wait_for(DRAWN)
            seconds.append(
                browser.evaluate("performance.getEntriesByName('curve-drawn')[0].startTime") / 1000
            )
            time.sleep(0.3)
            transferred.append(browser.bytes_received)
        points = browser.evaluate(LOSS_LINE).count("L")
        heights = browser.evaluate(
            "[...document.querySelectorAll('#curves .panel:first-child .mark')].length"
        )
        path = [_point(piece) for piece in re.split("[ML]", browser.evaluate(LOSS_LINE))[1:]]
        drawn = sum(_stands_out(path, step) for step in spikes)
        # it is always there
        rss = (
            int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1])  # type: ignore[index]
            / 1000
        )
        clicks = []
        for step in spikes[:5]:
            browser.evaluate(f"document.querySelector('a[href$=\"/step/{step}\"]').click()")
            began = time.monotonic()
            browser.wait_for(
                f"document.querySelector('h1').textContent === 'Step {step:,}'"
                " && document.querySelector('pre.sample span.h9') !== null"
            )
            clicks.append(time.monotonic() - began)
            browser.evaluate("history.back()")
            browser.wait_for(f"document.getElementById('sections') !== null && {DRAWN}")
        assert browser.complaints == []
        assert [
            url for url in addresses(browser) if not url.startswith((address[0], "data:", "about:"))
        ] == []
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert (drawn, heights) == (NUM_SPIKES, NUM_SPIKES)
    assert 400 < points <= 2000
    # the best, since other tests run beside this one; benchmarks/dashboard.py has the median
    assert min(seconds) < 2.0
    assert max(transferred) < 100_000
    assert min(clicks) < 0.5
    assert rss < 150


def _point(text: str) -> tuple[float, float]:
    x, y = text.split(" ")
    return float(x), float(y)


def _stands_out(path: list[tuple[float, float]], step: int) -> bool:
    """Is a point of the curve at this step above the ones around it?"""
    x = 56 + (step - 1) / 999_999 * (1100 - 15 - 2 * 28 - 68)  # the width of the page
    near = [place for place, (at, _) in enumerate(path) if abs(at - x) < 1.6]
    around = sorted(y for at, y in path if abs(at - x) < 12)
    return any(path[place][1] < around[len(around) // 2] - 4 for place in near)


def test_a_closer_look_has_every_step_and_the_address_keeps_it(
    page: Browser, server: DashboardServer, spikes: list[int]
) -> None:
    first = spikes[7] - 40
    last = spikes[7] + 40
    page.open(f"{server.address}run/long?from={first}&to={last}")
    page.wait_for(DRAWN, 60)
    page.wait_for(f"{LOSS_LINE}.split('L').length >= 80")
    page.evaluate("document.getElementById('curves').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="+", text="+")
    page.wait_for("Number(new URLSearchParams(location.search).get('from')) > " + str(first))
    kept = query(page)
    page.open(f"{server.address}run/long{kept}")
    page.wait_for(DRAWN)
    shown = page.evaluate("document.getElementById('curves').dataset.from")
    assert f"from={shown}" in kept
    page.evaluate(
        "[...document.querySelectorAll('#curves button')].find((one) => one.textContent === 'show"
        " all').click()"
    )
    page.wait_for("location.search === ''")


def test_a_value_that_is_written_is_seen_within_moments(
    page: Browser, server: DashboardServer, folder: Path
) -> None:
    with Run(folder / "live", config={"max_updates": 1000}) as run:
        path = run.records("steps").path
        with path.open("a", buffering=1) as file:
            file.write("".join(step_line(step, 5.0 - step / 100) for step in range(1, 101)))
            time.sleep(2.1)  # the folder is searched every two seconds
            page.open(f"{server.address}run/live")
            page.wait_for(DRAWN)
            page.wait_for("document.getElementById('curves').dataset.to === '100'")
            time.sleep(1.0)
            delays = []
            for step in range(101, 105):
                file.write(step_line(step, 4.0))
                began = time.monotonic()
                page.wait_for(f"document.getElementById('curves').dataset.to === '{step}'", 10)
                delays.append(time.monotonic() - began)
        assert min(delays) < 1.5
        page.wait_for("document.getElementById('figures').textContent.includes('104')", 15)
        assert page.evaluate("document.getElementById('status').textContent") == "running"
    page.wait_for("document.getElementById('status').textContent.includes('finished')", 15)


def test_from_the_list_to_a_comparison_by_hand(page: Browser, server: DashboardServer) -> None:
    page.open(f"{server.address}?q=small")
    page.wait_for("document.querySelectorAll('svg.spark path').length === 3")
    assert page.evaluate("document.getElementById('compare').disabled")
    page.evaluate("sessionStorage.clear()")
    page.evaluate("document.querySelectorAll('input[name=run]').forEach((one) => one.click())")
    assert page.evaluate("document.getElementById('selected').textContent") == "3 selected"
    page.evaluate("document.getElementById('compare').click()")
    page.wait_for(DRAWN)
    assert page.evaluate("document.querySelectorAll('#curves path.curve').length") == 3
    for control, value in (("smooth", "8"), ("metric", "accuracy"), ("x", "seconds")):
        type_text(page, f"#{control}", value)
    page.wait_for("document.querySelectorAll('#curves path.curve.raw').length === 6")
    assert query(page).endswith("smooth=8&metric=loss&metric=accuracy&x=seconds")
    page.evaluate("history.back()")
    page.wait_for("document.getElementById('runs') !== null")
    assert page.evaluate("document.querySelectorAll('#runs input:checked').length") == 3


def test_keys_search_and_go_from_event_to_event(
    page: Browser, server: DashboardServer, spikes: list[int]
) -> None:
    page.open(f"{server.address}run/long/step/{spikes[3]}")
    for key, step in (("n", spikes[4]), ("p", spikes[3]), ("p", spikes[2])):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        page.wait_for(
            f"document.querySelector('h1').textContent === 'Step {step:,}' &&"
            f" location.pathname.endsWith('/{step}')"
        )
    page.call("Input.dispatchKeyEvent", type="keyDown", key="u", text="u")
    page.wait_for("location.pathname === '/run/long'")


def test_a_token_tells_its_loss_under_the_pointer(page: Browser, server: DashboardServer) -> None:
    page.open(f"{server.address}run/eventful/run/step/{SPIKE_STEP}")
    page.wait_for(DRAWN)
    place = (
        "(({left, top}) => [left + 2, top + 4])(document.querySelector('pre.sample"
        " span.h9').getBoundingClientRect())"
    )
    page.evaluate("document.querySelector('pre.sample span.h9').scrollIntoView({block: 'center'})")
    time.sleep(0.3)  # until it has scrolled
    x, y = page.evaluate(place)
    page.mouse("mouseMoved", x, y)
    assert "loss" in page.wait_for("document.querySelector('.hover-label')?.textContent")


def test_hostile_text_stays_text_on_every_page(page: Browser, server: DashboardServer) -> None:
    parts = ("samples", "checkpoints", "check", "audit", "log", "settings")
    for part in ("", f"/step/{SPIKE_STEP}", *(f"/{name}" for name in parts)):
        page.open(f"{server.address}run/eventful/run{part}")
        assert "owned" not in page.evaluate("document.title")
        assert (
            page.evaluate(
                "document.querySelectorAll('img, iframe, object, svg[onload], [onerror], main"
                " script').length"
            )
            == 0
        )
        if part in ("/settings", "/check", "/audit"):
            assert HOSTILE[0] in page.evaluate("document.body.textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page: Browser, server: DashboardServer, scheme: str) -> None:
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page.prefer(scheme)
    event = f"run/eventful/run/step/{SPIKE_STEP}"
    for part in (
        "",
        "run/eventful/run",
        event,
        "run/eventful/run/checkpoints",
        "run/eventful/run/check",
        "run/eventful/run/audit",
        "run/eventful/run/log",
        "run/eventful/run/settings",
        "compare?run=small-0&run=small-1",
    ):
        page.open(server.address + part)
        if "run" in part and part.endswith(("run", "small-1")):
            page.wait_for(DRAWN)
        page.evaluate(f"{axe};true")
        found: list[dict[str, Any]] = json.loads(
            page.evaluate("axe.run().then((one) => JSON.stringify(one.violations))")
        )
        serious = [
            (part, violation["id"], violation["nodes"][0]["html"][:200])
            for violation in found
            if violation["impact"] in ("serious", "critical") or violation["id"] == "heading-order"
        ]
        assert serious == []


def test_every_page_fits_a_phone(page: Browser, server: DashboardServer) -> None:
    page.resize(360, 740)
    for part in (
        "",
        "run/eventful/run",
        f"run/eventful/run/step/{SPIKE_STEP}",
        "run/eventful/run/check",
        "run/eventful/run/audit",
        "run/eventful/run/log",
        "run/eventful/run/settings",
        "compare?run=small-0&run=small-1",
    ):
        page.open(server.address + part)
        time.sleep(0.3)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), part
