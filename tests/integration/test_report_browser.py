"""The report in a real browser: it draws, zooms, prints, loads nothing, and hostile text stays
text.
"""

import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from eventful_run import HOSTILE, NUM_STEPS, SPIKE_STEP, build_run

from sonde.report.facts import gather
from sonde.report.html.cell import show
from sonde.report.html.page import render_html
from sonde.report.wording import visible
from sonde.run import Run

pytestmark = pytest.mark.slow

LOSS_PANEL = "document.querySelector('#curves .panel svg')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(find_chromium(), tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    path = folder / "report.html"
    path.write_text(render_html(gather(build_run(folder))), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Browser, report: Path) -> Browser:
    browser.resize(1100, 900)
    browser.prefer("light")
    browser.open(report)
    return browser


def seen_steps(page: Browser) -> tuple[float, float]:
    first, last = page.evaluate(
        "(({from, to}) => [Number(from), Number(to)])(document.getElementById('curves').dataset)"
    )
    return first, last


def on_loss_panel(page: Browser, across: float) -> tuple[float, float]:
    """A point on the loss panel: at this part of its width, and in the middle of its height."""
    page.evaluate(f"{LOSS_PANEL}.scrollIntoView({{block: 'center'}})")
    left, top, width, height = page.evaluate(
        "(({left, top, width, height}) => [left, top, width,"
        f" height])({LOSS_PANEL}.getBoundingClientRect())"
    )
    return left + width * across, top + height / 2


def test_the_curves_are_drawn_without_a_complaint(page: Browser) -> None:
    drawn, points = page.evaluate(
        "(({drawn, points}) => [drawn, Number(points)])(document.getElementById('curves').dataset)"
    )
    assert (drawn, points > NUM_STEPS) == ("true", True)
    lines = page.evaluate(
        "[...document.querySelectorAll('#curves path.curve')].map((one) =>"
        " one.getAttribute('d').length)"
    )
    assert len(lines) == 7  # loss, gradient norm, rate and what a restart took back of each; speed
    assert min(lines) > 100
    assert (
        page.evaluate("document.querySelectorAll('#curves circle.dots').length") == NUM_STEPS // 50
    )
    assert page.evaluate(
        "[...document.querySelectorAll('#curves .mark')].map((one) => one.firstChild.data)"
    ) == ["◇ 260", "▼ 300"]
    assert seen_steps(page) == (1, NUM_STEPS)
    assert page.complaints == []


def test_nothing_is_loaded(page: Browser) -> None:
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0


def test_the_wheel_scrolls_the_page_and_with_ctrl_it_zooms_around_the_pointer(
    page: Browser,
) -> None:
    x, y = on_loss_panel(page, 0.7)
    scrolled = page.evaluate("scrollY")
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-40)
    page.wait_for(f"scrollY === {scrolled - 40}")
    assert seen_steps(page) == (1, NUM_STEPS)
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=40)
    page.wait_for(f"scrollY === {scrolled}")
    for _ in range(5):
        page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120, modifiers=2)
    first, last = seen_steps(page)
    assert last - first < NUM_STEPS / 4
    assert first < SPIKE_STEP - 10 < last
    assert page.evaluate("scrollY") == scrolled
    assert page.evaluate("document.querySelector('#curves .range').textContent").startswith(
        "steps "
    )
    for _ in range(7):
        page.mouse("mouseWheel", x, y, deltaX=0, deltaY=120, modifiers=2)
    assert seen_steps(page) == (1, NUM_STEPS)


def test_dragging_zooms_and_a_double_click_shows_all(page: Browser) -> None:
    start, y = on_loss_panel(page, 0.5)
    end, _ = on_loss_panel(page, 0.75)
    page.mouse("mouseMoved", start, y)
    page.mouse("mousePressed", start, y, button="left", clickCount=1)
    page.mouse("mouseMoved", end, y, button="left")
    assert page.evaluate("document.querySelectorAll('#curves .brush').length") == 4
    page.mouse("mouseReleased", end, y, button="left", clickCount=1)
    first, last = seen_steps(page)
    assert 180 < first < 230
    assert 290 < last < 340
    for count in (1, 2):
        page.mouse("mousePressed", end, y, button="left", clickCount=count)
        page.mouse("mouseReleased", end, y, button="left", clickCount=count)
    assert seen_steps(page) == (1, NUM_STEPS)
    assert page.complaints == []


def test_the_pointer_reads_values_and_a_click_on_an_event_looks_closer(page: Browser) -> None:
    shown = "document.querySelector('#curves .entry.line b').textContent"
    before = page.evaluate(shown)
    x, y = on_loss_panel(page, 0.053)  # the first step, where the scale at the left ends
    page.mouse("mouseMoved", x, y)
    assert page.evaluate(shown) != before
    assert float(page.evaluate(shown)) > 5
    page.evaluate(
        "document.querySelector('#curves .mark.wrong').dispatchEvent(new MouseEvent('click',"
        " {bubbles: true}))"
    )
    first, last = seen_steps(page)
    assert (first, last) == (SPIKE_STEP - 30, SPIKE_STEP + 30)
    page.evaluate(
        "[...document.querySelectorAll('#curves button')].find((one) => one.textContent === 'log"
        " scale').click()"
    )
    assert page.complaints == []


def test_hostile_text_stays_text(page: Browser) -> None:
    assert page.evaluate("document.title").endswith("sonde report")
    for name in (
        "img",
        "iframe",
        "a",
        "object",
        "form",
        "link",
        "textarea",
        "main script",
        "svg[onload]",
        "[onerror]",
    ):
        found = page.evaluate(
            f"document.querySelectorAll({name!r} + ':not([type=\"application/json\"])').length"
        )
        assert (name, found) == (name, 0)
    text = page.evaluate("document.body.textContent")
    for hostile in HOSTILE:
        assert visible(hostile) in text
    assert page.complaints == []


def test_the_policy_would_stop_a_script_that_got_in(page: Browser) -> None:
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent:"
        " 'document.title = 1'}))"
    )
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title ="
        ' 1"><p style="color: red">\')'
    )
    assert page.evaluate("document.title").endswith("sonde report")
    assert (
        len([complaint for complaint in page.complaints if "Content Security Policy" in complaint])
        >= 2
    )


def test_it_fits_a_phone_and_follows_the_colour_scheme(page: Browser) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.resize(360, 740)
    page.prefer("dark")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(f"{LOSS_PANEL}.getBoundingClientRect().right <= innerWidth")
    dark = page.evaluate(background)
    assert sum(map(int, light[4:-1].split(","))) > 600 > 150 > sum(map(int, dark[4:-1].split(",")))


def test_it_can_be_printed(page: Browser) -> None:
    printed = base64.b64decode(page.call("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000


def test_a_run_with_nothing_in_it_has_a_page_without_a_complaint(
    browser: Browser, tmp_path: Path
) -> None:
    with Run(tmp_path / "run"):
        (tmp_path / "empty.html").write_text(
            render_html(gather(tmp_path / "run")), encoding="utf-8"
        )
    browser.open(tmp_path / "empty.html")
    assert "No loss was recorded." in browser.evaluate("document.body.textContent")
    assert browser.complaints == []


def test_without_a_browser_these_tests_are_skipped_but_not_in_ci(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NO CHROMIUM"):
        find_chromium()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="NO CHROMIUM"):
        find_chromium()


def test_curves_fill_the_width_that_a_frame_gets_later(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(
        render_html(gather(build_run(tmp_path))), encoding="utf-8"
    )
    # A notebook may show a frame before it has a width.
    page = (
        '<!DOCTYPE html><body style="margin: 0"><iframe src="report.html" width="0"'
        ' height="900" frameborder="0"></iframe></body>'
    )
    (tmp_path / "notebook.html").write_text(page, encoding="utf-8")
    browser.resize(1000, 900)
    browser.open(tmp_path / "notebook.html")
    frame = browser.call("Page.getFrameTree")["frameTree"]["childFrames"][0]["frame"]["id"]
    world = browser.call("Page.createIsolatedWorld", frameId=frame)["executionContextId"]

    def width() -> float:
        expression = f"{LOSS_PANEL}.getAttribute('width')"
        answer = browser.call("Runtime.evaluate", expression=expression, contextId=world)
        return float(answer["result"]["value"])

    deadline = time.monotonic() + 20
    while width() != 160:
        assert time.monotonic() < deadline
    browser.evaluate("document.querySelector('iframe').width = '100%'")
    while not 900 < width() < 1000:
        assert time.monotonic() < deadline


def test_a_cell_fills_the_width_of_a_notebook(browser: Browser, tmp_path: Path) -> None:
    # Without its sandbox, the frame is in this process, where it can be asked.
    cell = re.sub(' sandbox="[^"]*"', "", show(build_run(tmp_path))._repr_html_())
    (tmp_path / "notebook.html").write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><body style="margin: 0">{cell}', encoding="utf-8"
    )
    browser.resize(1600, 900)
    browser.open(tmp_path / "notebook.html")
    frame = browser.call("Page.getFrameTree")["frameTree"]["childFrames"][0]["frame"]["id"]
    world = browser.call("Page.createIsolatedWorld", frameId=frame)["executionContextId"]
    expression = f"Number({LOSS_PANEL}?.getAttribute('width') ?? 0)"
    deadline = time.monotonic() + 20
    width = 0
    while width < 1500:
        assert time.monotonic() < deadline, width
        answer = browser.call("Runtime.evaluate", expression=expression, contextId=world)
        width = answer["result"]["value"]
