"""What holds for every test: how hypothesis searches, what a fast test may cost, and that it leaves
nothing behind.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest

# A loaded machine is not a failed property, so no deadlines. CI looks at the same examples each
# time: red there means that the change broke something; other examples are looked for on the
# machines of people who can look into them.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


# A job in the background or under nohup inherits these as ignored, and so would every process that
# a test starts and then interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The processes of pytest-xdist have the width of its terminal here; output is tested without one.
os.environ.pop("COLUMNS", None)

MAX_FAST_CPU_SECONDS: Final = 6.0
"""Generous: a test over about one second should say so, but a busy machine, the first import of
torch and the first language model cost too.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that docs/reliability.md names show a fault: `make faults` finds them by this mark."""
    root = Path(__file__).parents[1]
    page = root / "docs" / "reliability.md"
    if not page.exists():  # a scratch copy of the project, made to test the gates
        return
    named = set(re.findall(r"`(tests/[\w/]+\.py::test_\w+)`", page.read_text()))
    for item in items:
        name = f"{item.path.relative_to(root).as_posix()}::{item.name.partition('[')[0]}"
        if name in named and item.get_closest_marker("fault") is None:
            item.add_marker(pytest.mark.fault)


@pytest.fixture(autouse=True)
def _a_long_test_is_marked_slow(request: pytest.FixtureRequest) -> Iterator[None]:
    before = _cpu_seconds()
    yield
    spent = _cpu_seconds() - before
    marked = request.node.get_closest_marker("slow") or request.node.get_closest_marker("soak")
    assert marked or spent < MAX_FAST_CPU_SECONDS, (
        f"took {spent:.1f} s of CPU: mark it slow, or make it faster"
    )


@pytest.fixture(autouse=True)
def _metrics_start_empty() -> None:
    # Named aggregators belong to the process, which many tests share.
    lookup = sys.modules.get("sonde.metrics.stack")
    if lookup is not None:
        lookup.reset()


@pytest.fixture(autouse=True)
def _working_directory_stays() -> Iterator[None]:
    before = Path.cwd()
    yield
    after = Path.cwd()
    os.chdir(before)
    assert after == before, f"the test left the working directory at {after}"


@pytest.fixture(autouse=True, scope="module")
def _no_process_stays() -> Iterator[None]:
    # By module, so that a module may share a process among its tests. Made first in its scope,
    # hence torn down last.
    before = _children()
    yield
    left = {pid: command for pid, command in _children().items() if pid not in before}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"the tests left processes behind (killed now): {left}"


def _cpu_seconds() -> float:
    """CPU time of this process and of the children it has waited for."""
    return sum(os.times()[:4])


def _children() -> dict[int, str]:
    """Live child processes of this one with their command lines; none where /proc does not tell
    (not on Linux).
    """
    children: dict[int, str] = {}
    for thread in Path("/proc/self/task").glob("*/children"):
        try:
            pids = [int(word) for word in thread.read_text().split()]
        except OSError:  # the thread has just ended
            continue
        for pid in pids:
            command = _command_of(pid)
            # multiprocessing keeps these two for the rest of the process's life; the dead have no
            # command line.
            if command and "resource_tracker" not in command and "forkserver" not in command:
                children[pid] = command
    return children


def _command_of(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""
