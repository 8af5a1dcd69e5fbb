"""Runs kept open: within a budget, as they are now, and without their index while that is made."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sonde.dashboard import folder
from sonde.dashboard.folder import OpenRun, RunFolder, state_of
from sonde.run import Run


def make_run(directory: Path, num_steps: int = 100) -> Path:
    with Run(directory) as run:
        for step in range(1, num_steps + 1):
            run.records("steps").append(
                {"type": "STEP", "step": step, "loss": 2.0, "weight": 1.0, "lr": 0.1}
            )
            run.logger.log(step, {"val.loss": 3.0})
    return directory


def test_runs_that_were_looked_at_long_ago_are_let_go(tmp_path: Path) -> None:
    runs = RunFolder(tmp_path, max_bytes=3 * 100 * 40)
    names = [make_run(tmp_path / f"run-{number}").name for number in range(5)]
    seen = []
    for name in names:
        with runs.open(name) as run:
            run.curves()
            seen.append(run)
    with runs.open(names[-1]) as run:
        assert run is seen[-1]
    with runs.open(names[0]) as run:
        assert run is not seen[0]


def test_what_is_written_meanwhile_is_there(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    run = OpenRun(path)
    assert run.curves().updates.steps[-1] == 100
    with Run(path) as again:
        again.records("steps").append(
            {"type": "STEP", "step": 101, "loss": 1.0, "weight": 1.0, "lr": 0.1}
        )
    assert run.curves().updates.steps[-1] == 101


def test_a_large_run_is_shown_before_it_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed = threading.Event()
    monkeypatch.setattr(folder, "_INDEX_APART_BYTES", 100)
    monkeypatch.setattr(folder, "_AT_ONCE_BYTES", 100)
    monkeypatch.setattr(folder, "_index_apart", lambda _: indexed.wait(30))
    run = OpenRun(make_run(tmp_path / "run"))
    was_ready = run.is_ready
    assert "val.loss" not in run.curves().names
    assert "loss" in run.curves().names
    assert (was_ready, run.is_ready) == (False, True)
    indexed.set()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon:
            thread.join(10)
    assert "val.loss" in run.curves().names


def test_a_large_run_that_has_only_a_log_waits_for_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_INDEX_APART_BYTES", 100)
    with Run(tmp_path / "run") as run:
        run.logger.log(1, {"loss": 3.0})
    assert OpenRun(tmp_path / "run").curves().names == ["loss"]


def test_a_run_that_changed_or_appeared_is_seen(tmp_path: Path) -> None:
    found = RunFolder(tmp_path)
    assert found.rows() == []
    path = make_run(tmp_path / "run")
    found._look_at = 0.0
    (row,) = found.rows()
    assert (row.name, row.step, row.loss) == ("run", 100, 2.0)
    before = state_of(path)
    assert found.rows()[0] is row
    with Run(path) as again:
        again.records("steps").append(
            {"type": "STEP", "step": 101, "loss": 1.0, "weight": 1.0, "lr": 0.1}
        )
        assert state_of(path) != before
        assert (found.rows()[0].step, found.rows()[0].summary.status) == (101, "running")


def test_a_folder_that_is_a_run_has_its_name(tmp_path: Path) -> None:
    make_run(tmp_path / "alone", 1)
    assert list(RunFolder(tmp_path / "alone").runs()) == ["alone"]


def test_a_run_that_was_killed_is_said_to_be(tmp_path: Path) -> None:
    found = RunFolder(tmp_path)
    command = (
        "import os, sys, sonde; run = sonde.Run(sys.argv[1]); print('there', flush=True);"
        " sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    (row,) = found.rows()
    process.kill()
    process.communicate()
    (then,) = found.rows()
    assert (row.summary.status, then.summary.status) == ("running", "killed")
