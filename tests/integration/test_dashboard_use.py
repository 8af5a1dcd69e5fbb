"""The dashboard in a real browser, as somebody uses it who looks for something: every metric, every
event, what goes on, what is gone.
"""

import math
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser import Browser
from dashboard_pages import DRAWN, LOSS_LINE, click, query, type_text
from dashboard_server import serving
from eventful_run import SPIKE_STEP

from sonde.dashboard.serve import DashboardServer
from sonde.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


_ALL_IN_VIEW = (
    "[...document.querySelectorAll('.metrics[open] .panel')].every((one) => {"
    " const {top, bottom} = one.getBoundingClientRect();"
    " return bottom < 0 || top > innerHeight || one.dataset.drawn === 'true'; })"
)
"""Every panel that can be seen is drawn."""


def test_every_metric_is_there_and_drawn_when_it_comes_into_view(
    page: Browser, server: DashboardServer, named: str
) -> None:
    page.open(server.address + named)
    page.wait_for("document.getElementById('curves').dataset.listed === 'true'")
    assert page.evaluate("document.querySelector('#curves .panel-title').title") == "loss"
    titles = "[...document.querySelectorAll('.metrics .panel-title')].map((one) => one.title)"
    listed = page.evaluate(titles)
    assert len(listed) == 33
    assert {"layers/0/norm", "train/acc top-1", "eval.bleu", "gpu.memory"} <= set(listed)
    drawn = "document.querySelectorAll('.metrics .panel[data-drawn]').length"
    assert page.evaluate(drawn) < 33
    assert not page.evaluate("document.querySelector('[data-section=layers]').open")
    click(page, "[data-section=layers] summary")
    page.evaluate("document.querySelector('[data-section=layers]').scrollIntoView()")
    page.wait_for(
        "[...document.querySelectorAll('[data-section=layers] .panel')].slice(0, 4).every((one) =>"
        " one.dataset.drawn === 'true')"
    )
    assert query(page) == "?turned=layers"
    for _ in range(12):
        page.evaluate("scrollBy(0, 600)")
        page.wait_for(_ALL_IN_VIEW)
    page.wait_for(f"{drawn} === 33")
    assert page.evaluate("document.getElementById('missing').textContent") == ""


def test_what_comes_into_view_while_others_are_asked_for_delays_none_of_them(
    page: Browser, server: DashboardServer, named: str
) -> None:
    page.open(server.address + named)
    page.wait_for("document.getElementById('curves').dataset.listed === 'true'")
    page.evaluate(
        "(() => { const real = window.fetch; window.fetch = async (...asked) => {"
        " await new Promise((go) => setTimeout(go, 500)); return real(...asked); }; })()"
    )
    click(page, "[data-section=layers] summary")
    page.evaluate("document.querySelector('[data-section=layers]').scrollIntoView()")
    time.sleep(0.3)  # the first request is under way
    page.evaluate("scrollBy(0, 250)")
    page.wait_for(_ALL_IN_VIEW, 20)


def test_the_curve_around_an_event_needs_no_gradient_norm(
    page: Browser, server: DashboardServer, folder: Path
) -> None:
    with Run(folder / "loss-only") as run:
        for step in range(1, 301):
            run.logger.log(step, {"train/loss": 9.0 if step == 250 else 1.0 + step % 7})
        run.event("my_check", step=250, title="a jump")
    time.sleep(2.1)
    page.open(f"{server.address}run/loss-only/step/250")
    page.wait_for(DRAWN)
    assert page.evaluate(
        "[...document.querySelectorAll('#curves .panel-title')].map((one) => one.title)"
    ) == ["loss"]
    assert page.evaluate("document.querySelectorAll('#curves .mark').length") == 1


def test_the_filter_is_in_the_address_and_says_when_nothing_matches(
    page: Browser, server: DashboardServer, named: str
) -> None:
    page.open(server.address + named)
    page.wait_for("document.getElementById('curves').dataset.listed === 'true'")
    type_text(page, "#filter", "norm$")
    shown = "[...document.querySelectorAll('.panel')].filter((one) => !one.hidden).length"
    page.wait_for(f"{shown} === 30")
    assert query(page) == "?filter=norm%24"
    page.open(f"{server.address}{named}?filter=1/norm")
    page.wait_for(f"{shown} === 3")  # 1, 11 and 21
    page.wait_for("document.querySelectorAll('.panel[data-drawn]:not([hidden])').length === 3")
    type_text(page, "#filter", "nosuch")
    page.wait_for(
        "document.getElementById('missing').textContent === 'No metric matches “nosuch”.'"
    )
    # What an earlier version wrote into the address still works.
    page.open(f"{server.address}{named}?metric=eval.bleu&metric=train/acc%20top-1")
    page.wait_for(f"document.querySelector('[data-section=eval]') && {shown} === 2")


def test_smoothing_and_the_axis_are_on_the_page_of_a_run(
    page: Browser, server: DashboardServer, named: str
) -> None:
    page.open(server.address + named)
    page.wait_for(DRAWN)
    type_text(page, "#smooth", "8")
    page.wait_for("document.querySelectorAll('#curves path.curve.raw').length === 1")
    type_text(page, "#x", "seconds")
    page.wait_for("/ s$/.test(document.querySelector('#curves .range').textContent)")
    assert query(page) == "?smooth=8&x=seconds"
    type_text(page, "#x", "tokens")
    page.wait_for(
        "document.getElementById('missing').textContent === 'This run does not say its tokens.'"
    )


def test_a_value_that_is_not_a_number_interrupts_the_line(
    page: Browser, server: DashboardServer, folder: Path
) -> None:
    with Run(folder / "broken") as run:
        for step in range(1, 201):
            run.logger.log(step, {"loss": math.nan if 100 <= step < 110 else 1.0 + step % 7})
    time.sleep(2.1)
    page.open(f"{server.address}run/broken")
    page.wait_for(DRAWN)
    assert page.evaluate(LOSS_LINE).count("M") == 2
    x, y = page.evaluate(
        "(({left, top}) => [left, top + 30])(document.querySelectorAll('.not-a-number')[5]"
        ".getBoundingClientRect())"
    )
    page.mouse("mouseMoved", x, y)
    page.wait_for("document.querySelector('.panel-legend b').textContent === 'NaN'")


def test_the_wheel_scrolls_and_with_ctrl_it_zooms(
    page: Browser, server: DashboardServer, named: str
) -> None:
    page.open(server.address + named)
    page.wait_for("document.getElementById('curves').dataset.listed === 'true'")
    page.mouse("mouseWheel", 500, 500, deltaX=0, deltaY=-200)
    page.mouse("mouseWheel", 500, 500, deltaX=0, deltaY=300)
    page.wait_for("scrollY > 100")
    assert query(page) == ""
    page.evaluate("scrollTo(0, 0)")
    page.mouse("mouseWheel", 500, 500, deltaX=0, deltaY=-200, modifiers=2)
    page.wait_for("location.search.startsWith('?from=')")


def test_a_panel_is_saved_as_a_picture_and_as_a_table(
    page: Browser, server: DashboardServer, named: str, tmp_path: Path
) -> None:
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.open(server.address + named)
    page.wait_for(DRAWN)
    click(page, "#curves .panel-links button")
    click(page, "#curves .panel-links a")
    deadline = time.monotonic() + 20
    while not all((tmp_path / name).exists() for name in ("loss.svg", "sonde.csv")):
        assert time.monotonic() < deadline, list(tmp_path.iterdir())
        time.sleep(0.1)
    picture = (tmp_path / "loss.svg").read_text()
    assert picture.startswith("<svg")
    assert 'stroke="rgb(43, 95, 168)"' in picture
    rows = (tmp_path / "sonde.csv").read_text().splitlines()
    assert rows[:2] == ["run,metric,step,value", "named,loss,1,3.0"]
    assert len(rows) == 201


def test_an_event_has_its_verdict_first_and_its_curve_beside_it(
    page: Browser, server: DashboardServer
) -> None:
    page.open(f"{server.address}run/eventful/run/step/{SPIKE_STEP}")
    page.wait_for(DRAWN)
    places = page.evaluate(
        "['.verdict', '#curves', '.samples', '[id^=tensors]'].map((one) =>"
        " document.querySelector(one).getBoundingClientRect().top)"
    )
    assert abs(places[0] - places[1]) < 60
    assert places[0] < places[2] < places[3]
    shown = page.evaluate("({...document.getElementById('curves').dataset})")
    assert (shown["from"], shown["to"]) == (str(SPIKE_STEP - 100), str(SPIKE_STEP + 100))


def test_commands_are_copied_with_the_path_of_the_run(
    page: Browser, server: DashboardServer, folder: Path
) -> None:
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    page.open(f"{server.address}run/eventful/run/step/{SPIKE_STEP}")
    page.evaluate(
        "navigator.clipboard.writeText = async (text) => { window.copied = text; }; void 0"
    )
    click(page, ".told button[data-copy]")
    page.wait_for("window.copied")
    copied = page.evaluate("window.copied")
    assert copied == f"sonde rollback {folder / 'eventful' / 'run'} --step {SPIKE_STEP}"


def test_a_refresh_keeps_the_scroll_the_focus_and_the_selected_text(
    page: Browser, server: DashboardServer, folder: Path
) -> None:
    with Run(folder / "kept") as run:
        run.logger.log(1, {"loss": 1.0})
        time.sleep(2.1)
        page.resize(1100, 300)
        page.open(server.address)
        page.wait_for("document.querySelector('tr[data-key=kept]') !== null")
        page.evaluate(
            "(() => { const row = document.querySelector('tr[data-key=kept]');"
            " row.querySelector('input').focus({preventScroll: true}); scrollTo(0, 120);"
            " const name = document.querySelector('tr[data-key=small-0] a').firstChild;"
            " getSelection().setBaseAndExtent(name, 0, name, 5); window.row = row; })()"
        )
        run.logger.log(2, {"loss": 0.25})
        page.wait_for("document.querySelector('tr[data-key=kept]').textContent.includes('0.25')")
    kept = page.evaluate(
        "[scrollY, getSelection().toString(), document.activeElement.value,"
        " document.querySelector('tr[data-key=kept]') === window.row]"
    )
    assert kept == [120, "small", "kept", True]


def test_a_server_or_a_run_that_is_gone_is_said(browser: Browser, tmp_path: Path) -> None:
    with Run(tmp_path / "runs" / "moved") as run:
        run.logger.log(1, {"loss": 1.0})
    browser.resize(1100, 900)
    with serving(tmp_path / "runs") as server:
        browser.open(f"{server.address}run/moved")
        browser.wait_for(DRAWN)
        assert browser.evaluate("document.getElementById('trouble').hidden")
        (tmp_path / "runs" / "moved").rename(tmp_path / "away")
        browser.wait_for(
            "document.getElementById('trouble').textContent.startsWith('This run is no longer')", 30
        )
        browser.open(server.address)
        browser.wait_for("document.getElementById('runs') !== null")
    browser.wait_for(
        "document.getElementById('trouble').textContent.startsWith('The server does not answer')",
        30,
    )
    assert not browser.evaluate("document.getElementById('trouble').hidden")


def test_a_run_that_was_killed_is_seen_to_be_without_a_reload(
    page: Browser, server: DashboardServer, folder: Path
) -> None:
    command = (
        "import sys, sonde; run = sonde.Run(sys.argv[1], config={'max_steps': 100});"
        " [run.logger.log(step, {'loss': 1.0}) for step in range(1, 11)];"
        " print('there', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command, str(folder / "doomed")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(2.1)
    page.open(f"{server.address}run/doomed")
    page.wait_for("document.getElementById('status').textContent === 'running'")
    told = page.evaluate("document.getElementById('state').textContent")
    assert "10 of 100 steps" in told
    assert re.search(r"\d left", told) or re.search(r"s left|min left|h \d+ min left", told)
    process.kill()
    process.communicate()
    page.wait_for("document.getElementById('status').textContent === 'killed'", 20)


def test_times_are_those_of_the_reader(page: Browser, server: DashboardServer) -> None:
    page.call("Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
    try:
        page.open(f"{server.address}run/small-0")
        exact, shown, title = page.evaluate(
            "(({dateTime, textContent, title}) => [dateTime, textContent, title])"
            "([...document.querySelectorAll('#state time')].at(-1))"
        )
    finally:
        page.call("Emulation.setTimezoneOverride", timezoneId="")
    hour = (int(exact[11:13]) + 9) % 24
    assert shown[11:] == f"{hour:02d}:{exact[14:16]}"
    assert exact.replace("T", " ").replace("Z", " UTC") in title


def test_compared_runs_are_hidden_by_a_click_and_named_under_the_pointer(
    page: Browser, server: DashboardServer
) -> None:
    page.open(f"{server.address}compare?run=small-0&run=small-1&run=small-2")
    page.wait_for(DRAWN)
    lines = "document.querySelectorAll('#curves path.curve').length"
    assert page.evaluate(lines) == 3
    click(page, "[data-toggle=small-1]")
    page.wait_for(f"{lines} === 2")
    assert query(page).endswith("hide=small-1")
    page.open(server.address + "compare" + query(page))
    page.wait_for(f"{DRAWN} && {lines} === 2")
    click(page, "[data-toggle=small-1]")
    page.wait_for(f"{lines} === 3")
    x, y = page.evaluate(
        "(({left, top, width, height}) => [left + width / 2, top + height * 0.9])"
        "(document.querySelector('#curves svg').getBoundingClientRect())"
    )
    page.mouse("mouseMoved", x, y)
    page.wait_for("document.querySelector('.hover-label')?.textContent.startsWith('small-0')")
    value = page.evaluate("document.querySelector('[data-value=small-2]').textContent")
    assert value.startswith("5.00")
    page.evaluate(
        "document.querySelector('[data-toggle=small-2]').dispatchEvent(new MouseEvent('click',"
        " {bubbles: true, shiftKey: true}))"
    )
    page.wait_for(f"{lines} === 1")
    assert query(page).endswith("hide=small-0&hide=small-1")
    type_text(page, "#metric", "accuracy")
    page.wait_for("document.querySelectorAll('#curves .panel').length === 2")
    assert "metric=loss&metric=accuracy" in query(page)


def test_a_comparison_follows_runs_that_go_on(
    page: Browser, server: DashboardServer, folder: Path
) -> None:
    with Run(folder / "going") as run:
        for step in range(1, 301):
            run.logger.log(step, {"loss": 2.0})
        time.sleep(2.1)
        page.open(f"{server.address}compare?run=going&run=small-0")
        page.wait_for("document.getElementById('curves').dataset.to === '300'")
        time.sleep(1.0)
        run.logger.log(400, {"loss": 1.0})
        page.wait_for("document.getElementById('curves').dataset.to === '400'", 20)
        page.wait_for("document.getElementById('legend').textContent.includes('400')", 20)


def test_columns_and_folds_are_kept_in_the_address(page: Browser, server: DashboardServer) -> None:
    page.open(f"{server.address}?q=small")
    page.wait_for("document.querySelectorAll('svg.spark path').length === 3")
    page.evaluate("document.getElementById('columns').open = true")
    click(page, "#columns input[value='set:lr']")
    page.wait_for("location.search.includes('col=set%3Alr')")
    page.wait_for("document.querySelector('tr[data-key=small-2]').textContent.includes('0.2')")
    assert page.evaluate("document.getElementById('columns').open")
    page.open(server.address)
    page.wait_for("document.querySelector('tr.group') !== null")
    click(page, "tr[data-key='group eventful'] a")
    page.wait_for("location.search === '?fold=eventful'")
    assert page.evaluate("document.querySelector('tr[data-key=\"eventful/run\"]')") is None
