"""A folder of runs, a dashboard over it and a browser, for the tests of the dashboard."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from dashboard_pages import addresses
from dashboard_runs import long_run
from dashboard_server import serving
from eventful_run import HOSTILE, build_run

from sonde.dashboard.serve import DashboardServer
from sonde.forensics.checks.check_report import CheckReport, RowPicture
from sonde.forensics.checks.check_rule import CheckResult
from sonde.records.layout import RunLayout
from sonde.records.values import encode
from sonde.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`long`: a million steps; `eventful/run…`: everything, hostile; `small-0…2`: to compare."""
    folder = tmp_path_factory.mktemp("dashboard-browser")
    (folder / "eventful").mkdir()
    build_run(folder / "eventful").rename(folder / "eventful" / "run")
    _check_and_audit(folder / "eventful" / "run")
    for number in range(3):
        with Run(folder / f"small-{number}", config={"lr": 0.1 * number}) as run:
            for step in range(1, 301):
                run.logger.log(step, {"loss": 3 + number + 1 / step, "accuracy": step / 300})
    return folder


@pytest.fixture(scope="module")
def spikes(folder: Path) -> list[int]:
    return long_run(folder / "long", 1_000_000)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[DashboardServer]:
    with serving(folder) as made:
        yield made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(find_chromium(), tmp_path_factory.mktemp("profile")) as opened:
        opened.call("Network.enable")
        yield opened


@pytest.fixture
def page(browser: Browser, server: DashboardServer) -> Iterator[Browser]:
    browser.resize(1100, 900)
    browser.prefer("light")
    yield browser
    assert browser.complaints == []
    assert [
        address
        for address in addresses(browser)
        if not address.startswith((server.address, "data:"))
    ] == []


@pytest.fixture(scope="module")
def named(folder: Path) -> str:
    """A run whose metrics have names as people write them: 40 of them, in four sections."""
    with Run(folder / "named", config={"max_steps": 400}) as run:
        for step in range(1, 201):
            values = {f"layers/{number}/norm": float(number + step % 3) for number in range(30)}
            values |= {"train/loss": 3 / step, "train/acc top-1": step / 200, "eval.bleu": step / 9}
            values["gpu.memory"] = 10.0
            run.logger.log(step, values)
    time.sleep(2.1)  # the folder is searched every two seconds
    return "run/named"


def _check_and_audit(run: Path) -> None:
    """Write what `sonde check` and `sonde audit` found, with hostile text."""
    text = HOSTILE[0]
    wrong = CheckResult(name="x", title=text, status="wrong", text=text, advice=text)
    fine = CheckResult(name="y", title="rows", status="fine", text=text, advice="")
    rows = (RowPicture(inputs=(text, "b"), targets=("b", "")),)
    report = CheckReport(results=(wrong, fine), rows=rows, num_updates=8, seconds=1.5)
    RunLayout(run).check.write_bytes(encode(report.document()))
    finding = {"kind": "markup", "strength": 0.9, "line": 3, "text": text, "evidence": [text]}
    audit = {
        "data": [text],
        "num_texts": 90,
        "num_bytes": 4000,
        "languages": ["en"],
        "counts": {"markup": 1},
        "num_found": 1,
        "findings": [finding],
    }
    RunLayout(run).audit.write_bytes(encode(audit))
