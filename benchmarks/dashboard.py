"""The dashboard in a browser, over a run of a million steps with 40 spikes of one step; TensorBoard
over the same numbers.

    python benchmarks/dashboard.py            about two minutes; needs chromium; TensorBoard is left
                                              out where it is not installed

First curve: from navigation to the mark that the page sets when the curve is drawn (for
TensorBoard: until its chart has a line), median of five loads without a cache. Transferred: all
bytes of such a load. Spikes: those of the 40 that stand out in the path that is drawn at full
zoom-out (for TensorBoard: those whose step is among the points that its server gives the page).
Click to text: from a click on an event to its text. Live: from the write of a record to its point
on the screen. Memory: resident, of the server and its children.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from benchmarks.measure import markdown_table
from browser import Browser
from dashboard_runs import NUM_SPIKES, long_run, many_runs, step_line

from sonde.records.layout import STEPS, RunLayout
from sonde.report.run_curves import Updates
from sonde.run import Run

_NUM_STEPS: Final = 1_000_000
_NUM_COMPARED: Final = 60
_NUM_LOADS: Final = 5
_DRAWN: Final = "document.getElementById('curves')?.dataset.drawn === 'true'"
_LOSS_LINE: Final = "document.querySelector('#curves .panel path.curve.line').getAttribute('d')"


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("error: there is no chromium\nhint: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        (root / "runs").mkdir()
        spikes = long_run(root / "runs" / "long", _NUM_STEPS)
        many_runs(root / "runs" / "sweep", _NUM_COMPARED, 5000)
        browser = stack.enter_context(Browser(chromium, root / "profile"))
        browser.call("Network.enable")
        ours = _ours(browser, root / "runs", spikes)
        theirs = (
            _tensorboard(browser, root, spikes) if shutil.which("tensorboard", path=_path()) else {}
        )
    goals = {
        "first curve, s": "≤ 0.5",
        "transferred, kB": "≤ 100",
        "spikes drawn": f"{NUM_SPIKES} of {NUM_SPIKES}",
        "click to text, ms": "≤ 150",
        "live, s behind": "≤ 1.5",
        "memory, MB": "≤ 150",
        "requests elsewhere": "0",
        "complaints in the console": "0",
        f"{_NUM_COMPARED} runs compared, s": "≤ 1",
    }
    rows = [[name, ours.get(name, ""), theirs.get(name, ""), goal] for name, goal in goals.items()]
    rows += [
        [name, value, theirs.get(name, ""), ""] for name, value in ours.items() if name not in goals
    ]
    print(markdown_table((f"{_NUM_STEPS:,} steps", "sonde", "TensorBoard", "goal"), rows))


def _ours(browser: Browser, runs: Path, spikes: list[int]) -> dict[str, Any]:
    command = [sys.executable, "-m", "sonde", "dashboard", str(runs), "--no-open", "--port", "0"]
    with _process(command) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found is not None
        address = found[0]
        began = time.monotonic()
        browser.open(f"{address}run/long")
        browser.wait_for(_DRAWN, 120)
        cold = time.monotonic() - began
        browser.wait_for(
            "document.getElementById('figures').textContent.includes('1,000,000')", 120
        )
        seconds = []
        transferred = []
        for _ in range(_NUM_LOADS):
            _fresh(browser, f"{address}run/long")
            browser.wait_for(_DRAWN)
            seconds.append(
                browser.evaluate("performance.getEntriesByName('curve-drawn')[0].startTime") / 1000
            )
            time.sleep(0.5)
            transferred.append(browser.bytes_received / 1000)
        drawn = _standing_out(browser.evaluate(_LOSS_LINE), spikes)
        clicks = [_click(browser, step) for step in spikes[:9]]
        memory = _memory(process.pid)
        complaints = len(browser.complaints)
        elsewhere = _elsewhere(browser, address)
        live = _live(browser, address, runs)
        compared = [_compare(browser, address) for _ in range(3)]
        return {
            "first curve, s": f"{statistics.median(seconds):.2f}",
            "transferred, kB": f"{statistics.median(transferred):.0f}",
            "spikes drawn": f"{drawn} of {NUM_SPIKES}",
            "click to text, ms": f"{1000 * statistics.median(clicks):.0f}",
            "live, s behind": f"{live:.2f}",
            "memory, MB": f"{memory:.0f}",
            "requests elsewhere": elsewhere,
            "complaints in the console": complaints,
            f"{_NUM_COMPARED} runs compared, s": f"{statistics.median(compared):.2f}",
            "first curve of a run that was never indexed, s": f"{cold:.1f}",
        }


def _click(browser: Browser, step: int) -> float:
    """Seconds from the click to the text, by the page's own clock."""
    took: float = browser.evaluate(f"""new Promise((done) => {{
            const began = performance.now();
            new MutationObserver((_, watch) => {{
                if (document.querySelector('pre.sample span.h9')) {{
                    watch.disconnect();
                    done(performance.now() - began);
                }}
            }}).observe(document.body, {{ childList: true, subtree: true }});
            document.querySelector('a[href$="/step/{step}"]').click();
        }})""")
    browser.evaluate("history.back()")
    browser.wait_for(_DRAWN)
    return took / 1000


def _live(browser: Browser, address: str, runs: Path) -> float:
    with Run(runs / "live") as run, run.records(STEPS).path.open("a", buffering=1) as file:
        file.write("".join(step_line(step, 5.0) for step in range(1, 101)))
        time.sleep(2.5)
        browser.open(f"{address}run/live")
        browser.wait_for("document.getElementById('curves')?.dataset.to === '100'")
        time.sleep(1.5)
        delays = []
        for step in range(101, 108):
            file.write(step_line(step, 4.0))
            began = time.monotonic()
            browser.wait_for(f"document.getElementById('curves').dataset.to === '{step}'", 30)
            delays.append(time.monotonic() - began)
            time.sleep(0.2)
    return statistics.median(delays)


def _compare(browser: Browser, address: str) -> float:
    names = "&".join(f"run=sweep/sweep-{number:03d}" for number in range(_NUM_COMPARED))
    _fresh(browser, f"{address}compare?{names}")
    browser.wait_for(_DRAWN)
    assert (
        browser.evaluate("document.querySelectorAll('#curves path.curve').length") == _NUM_COMPARED
    )
    took: float = browser.evaluate("performance.getEntriesByName('curve-drawn')[0].startTime")
    return took / 1000


def _standing_out(path: str, spikes: list[int]) -> int:
    """How many spikes have a point of the drawn path at their step that stands out from those
    around it.
    """
    points = np.array([point.split(" ") for point in re.split("[ML]", path)[1:]], float)
    left = points[:, 0].min()
    right = points[:, 0].max()
    num = 0
    for step in spikes:
        x = left + (step - 1) / (_NUM_STEPS - 1) * (right - left)
        near = points[np.abs(points[:, 0] - x) < 0.8, 1]
        around = points[np.abs(points[:, 0] - x) < 12, 1]
        num += bool(len(near) and near.min() < np.median(around) - 4)
    return num


def _tensorboard(browser: Browser, root: Path, spikes: list[int]) -> dict[str, Any]:
    updates = Updates(RunLayout(root / "runs" / "long").record_file(STEPS, 0))
    updates.refresh()
    (root / "tb").mkdir()
    write_scalars(
        root / "tb" / "events.out.tfevents.1794800000.here", "loss", updates.columns["loss"]
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(shutil.which("tensorboard", path=_path())),
        "--logdir",
        str(root / "tb"),
        "--port",
        str(port),
    ]
    with _process([*command, "--host", "127.0.0.1"]) as process:
        address = f"http://127.0.0.1:{port}/"
        began = time.monotonic()
        points: list[Any] = []
        while not points or points[-1][1] < _NUM_STEPS * 0.999:
            time.sleep(0.2)
            assert time.monotonic() - began < 600, "TensorBoard does not read"
            with contextlib.suppress(OSError, ValueError):
                points = json.loads(_get(f"{address}data/plugin/scalars/scalars?run=.&tag=loss"))
        cold = time.monotonic() - began
        kept = len({int(point[1]) for point in points} & set(spikes))
        seconds = []
        transferred = []
        for _ in range(_NUM_LOADS):
            _fresh(browser, address)
            browser.wait_for("document.querySelectorAll('line-chart path').length > 0", 120)
            seconds.append(browser.evaluate("performance.now()") / 1000)
            time.sleep(1.0)
            transferred.append(browser.bytes_received / 1000)
        return {
            "first curve, s": f"{statistics.median(seconds):.2f}",
            "transferred, kB": f"{statistics.median(transferred):.0f}",
            "spikes drawn": f"{kept} of {NUM_SPIKES}",
            "click to text, ms": "no text",
            "live, s behind": "30 (its reload interval)",
            "memory, MB": f"{_memory(process.pid):.0f}",
            "requests elsewhere": _elsewhere(browser, address),
            "first curve of a run that was never indexed, s": (
                f"{cold:.1f} until its server has read it"
            ),
        }


def write_scalars(path: Path, tag: str, values: Any) -> None:
    """An events file of TensorBoard with one scalar a step, from step 1: what its own writer takes
    minutes for.
    """
    with path.open("wb") as file:
        version = b"\x09" + struct.pack("<d", 1794800000.0) + b"\x1a\x0dbrain.Event:2"
        file.write(_framed(np.frombuffer(version, np.uint8)[None]))
        steps = np.arange(1, len(values) + 1)
        # by the length of a step's number
        for first, last in ((1, 1 << 7), (1 << 7, 1 << 14), (1 << 14, 1 << 21)):
            chosen = steps[(steps >= first) & (steps < last)]
            if not len(chosen):
                continue
            inner = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15"
            head = b"\x2a" + bytes([len(inner) + 6]) + b"\x0a" + bytes([len(inner) + 4]) + inner
            width = len(range(0, (last - 1).bit_length(), 7))
            rows = np.zeros((len(chosen), 9 + 1 + width + len(head) + 4), np.uint8)
            rows[:, 0] = 0x09
            rows[:, 1:9] = (1794800000.0 + chosen.astype("<f8")).view(np.uint8).reshape(-1, 8)
            rows[:, 9] = 0x10
            for place in range(width):
                more = 0x80 if place < width - 1 else 0
                rows[:, 10 + place] = (chosen >> (7 * place)) & 0x7F | more
            rows[:, 10 + width : -4] = np.frombuffer(head, np.uint8)
            rows[:, -4:] = (
                np.asarray(values)[chosen - 1].astype("<f4").view(np.uint8).reshape(-1, 4)
            )
            file.write(_framed(rows))


def _framed(rows: Any) -> bytes:
    """Records of one length with their lengths and checksums around them."""
    length = np.frombuffer(struct.pack("<Q", rows.shape[1]), np.uint8)[None]
    sums = [_masked_crc(length), _masked_crc(rows)]
    before = np.broadcast_to(np.concatenate([length, sums[0]], axis=1), (len(rows), 12))
    return np.concatenate([before, rows, sums[1]], axis=1).tobytes()


def _masked_crc(rows: Any) -> Any:
    """CRC-32C of every row, masked as the format wants it, as four bytes."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(
            np.uint32
        )
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in range(rows.shape[1]):
        crc = table[(crc ^ rows[:, column]) & 0xFF] ^ (crc >> 8)
    crc ^= np.uint32(0xFFFFFFFF)
    masked = ((crc >> 15) | (crc << 17)).astype(np.uint64) + 0xA282EAD8
    return (masked & 0xFFFFFFFF).astype("<u4")[:, None].view(np.uint8)


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _fresh(browser: Browser, address: str) -> None:
    """A load of its own: nothing is in the cache."""
    browser.call("Network.clearBrowserCache")
    browser.open("about:blank")
    browser.open(address)


def _elsewhere(browser: Browser, address: str) -> int:
    asked = [request["request"]["url"] for request in browser.requests]
    return len([url for url in asked if not url.startswith((address, "data:", "about:", "blob:"))])


def _memory(pid: int) -> float:
    """Megabytes of a process and its children."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(
                line.split(":", 1) for line in status.read_text().splitlines() if ":" in line
            )
            if str(pid) in (fields["Pid"].strip(), fields["PPid"].strip()) and "VmRSS" in fields:
                total += int(fields["VmRSS"].split()[0])
    return total / 1000


def _get(address: str) -> bytes:
    with urllib.request.urlopen(address) as answer:  # noqa: S310  our own server
        body: bytes = answer.read()
    return body


def _path() -> str:
    """Where programs are: those of this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


if __name__ == "__main__":
    main()
