"""The one background worker: in order, to the end, and never in a forked child."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sonde.records import worker as module
from sonde.records.worker import Worker


def unexpected(error: Exception) -> None:
    raise AssertionError(error)


@pytest.mark.parametrize("poll_seconds", [None, 0.005])
def test_tasks_are_done_in_order_and_flush_waits_for_them(poll_seconds: float | None) -> None:
    worker = Worker("w", on_error=unexpected, poll_seconds=poll_seconds)
    done: list[int] = []
    for number in range(50):
        worker.do(lambda number=number: done.append(number))  # type: ignore[misc]
    assert worker.flush()
    assert done == list(range(50))
    assert not worker.is_busy


def test_a_task_that_fails_is_reported_and_the_next_is_done() -> None:
    errors: list[Exception] = []
    done = []
    worker = Worker("w", on_error=errors.append)
    worker.do(lambda: 1 / 0)
    worker.do(lambda: done.append(1))
    worker.flush()
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert done == [1]


def test_flush_gives_up_after_its_time() -> None:
    worker = Worker("w", on_error=unexpected)
    goes_on = threading.Event()
    worker.do(goes_on.wait)
    assert not worker.flush(timeout=0.05)
    goes_on.set()
    assert worker.flush()


def test_an_idle_thread_ends_and_a_later_task_starts_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.02)
    worker = Worker("sonde-idle", on_error=unexpected)
    done = []
    worker.do(lambda: done.append(1))
    deadline = time.monotonic() + 5
    while any(thread.name == "sonde-idle" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.do(lambda: done.append(2))
    worker.flush()
    assert done == [1, 2]


def test_a_forked_child_does_its_own_tasks_and_does_not_wait_for_the_parents() -> None:
    worker = Worker("w", on_error=unexpected)
    goes_on = threading.Event()
    worker.do(goes_on.wait)
    pid = os.fork()
    if pid == 0:
        worker.flush()
        done: list[int] = []
        worker.do(lambda: done.append(1))
        worker.flush()
        os._exit(0 if done == [1] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    goes_on.set()
    worker.flush()


def test_a_normal_exit_waits_for_what_is_left(tmp_path: Path) -> None:
    script = f"""
import time
from pathlib import Path
from sonde.records.worker import Worker

worker = Worker("w", on_error=print)
worker.do(lambda: time.sleep(0.2))
worker.do(lambda: Path({str(tmp_path / "done")!r}).write_text("yes"))
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (tmp_path / "done").read_text() == "yes"
