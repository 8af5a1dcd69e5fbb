"""A run owns its directory, says what it is, resumes under its name, and never costs the loop
anything but records.
"""

import dataclasses
import errno
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fault_injection import (
    KILLED,
    exit_code_of,
    failing,
    faults_of,
    kill,
    run_in_child,
    start_child,
)

from sonde.errors import DamagedFile, RunError, RunLocked, SettingError
from sonde.records.layout import EVENTS, LOG, RunLayout
from sonde.records.lock import DEAD, current_owner, read_owner
from sonde.records.manifest import FAILED, FINISHED, RUNNING, read_manifest
from sonde.records.reader import read_records
from sonde.run import Run


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "x"


def events(directory: Path, rank: int = 0) -> list[dict[str, Any]]:
    return list(read_records(RunLayout(directory).record_file(EVENTS, rank)))


def event_names(directory: Path) -> list[str]:
    return [event["event"] for event in events(directory)]


def die_in(directory: Path) -> None:
    """Leave what a killed run leaves."""

    def train() -> None:
        run = Run(directory)
        run.records(LOG).append({"step": 1})
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_in_child(train) == KILLED


def test_the_manifest_says_what_the_run_is(directory: Path) -> None:
    before = time.time()
    with Run(
        directory,
        config={"rate": 0.1},
        seeds={"torch": 7},
        data={"train": "sha256:00"},
        world_size=2,
    ) as run:
        manifest = read_manifest(directory)
        assert manifest == run.manifest
        assert (manifest.status, manifest.ended, manifest.num_starts) == (RUNNING, None, 1)
        assert before <= manifest.created <= time.time()
        assert manifest.settings == {"rate": 0.1}
        assert (manifest.seeds, manifest.data, manifest.world_size) == (
            {"torch": 7},
            {"train": "sha256:00"},
            2,
        )
        assert manifest.command == sys.orig_argv
        assert manifest.versions["numpy"]
        assert manifest.host["pid"] == os.getpid()
        assert not run.resumed
        owner = read_owner(run.layout.lock)
        assert owner is not None
        assert owner.pid == os.getpid()
    ended = read_manifest(directory)
    assert (ended.status, ended.reason) == (FINISHED, None)
    assert ended.ended is not None
    assert ended.ended >= ended.created
    assert dataclasses.replace(ended, status=RUNNING, ended=None) == manifest
    assert not run.layout.lock.exists()
    assert sorted(os.listdir(directory)) == ["records", "run.json"]


def test_start_and_end_are_recorded(directory: Path) -> None:
    with Run(directory) as run:
        run.event("note", text="half way")
    start, note, end = events(directory)
    assert (start["event"], start["run_id"], start["start"]) == ("start", run.manifest.run_id, 1)
    assert (note["type"], note["rank"], note["text"]) == ("EVENT", 0, "half way")
    assert (end["event"], end["status"], end["reason"]) == ("end", FINISHED, None)
    assert start["time"] <= note["time"] <= end["time"]


def test_a_kind_of_record_has_one_file(directory: Path) -> None:
    with Run(directory, rank=1, world_size=2) as run:
        assert run.records(LOG) is run.records(LOG)
        assert run.records(LOG).append({"step": 1})
        with pytest.raises(SettingError, match="cannot be a kind"):
            run.records("../x")
    assert list(read_records(directory / "records" / "log.rank1.jsonl")) == [{"step": 1}]


def test_starting_again_resumes_under_the_same_name(directory: Path) -> None:
    with Run(directory, config={"rate": 0.1}, seeds={"torch": 7}, data={"train": "a"}) as run:
        first = run.manifest
    with Run(directory) as run:
        assert run.resumed
        assert (run.manifest.run_id, run.manifest.created) == (first.run_id, first.created)
        assert (run.manifest.num_starts, run.manifest.status, run.manifest.reason) == (
            2,
            RUNNING,
            None,
        )
        assert (run.manifest.settings, run.manifest.seeds, run.manifest.data) == (
            {"rate": 0.1},
            {"torch": 7},
            {"train": "a"},
        )
    with Run(directory, config={"rate": 0.2}) as run:
        assert (run.manifest.num_starts, run.manifest.settings) == (3, {"rate": 0.2})
    assert event_names(directory) == ["start", "end"] * 3


def test_a_failure_is_noted_with_its_exception_and_passed_on(directory: Path) -> None:
    with pytest.raises(ZeroDivisionError), Run(directory):
        _ = 1 / 0
    manifest = read_manifest(directory)
    assert (manifest.status, manifest.reason) == (FAILED, "ZeroDivisionError: division by zero")
    assert events(directory)[-1]["reason"] == "ZeroDivisionError: division by zero"
    assert not RunLayout(directory).lock.exists()
    with Run(directory):
        assert read_manifest(directory).reason is None


def test_an_exception_that_cannot_be_printed_is_noted_all_the_same(directory: Path) -> None:
    class Mute(Exception):  # noqa: N818  named after what it does
        def __str__(self) -> str:
            raise RuntimeError("no words")

    with pytest.raises(Mute), Run(directory):
        raise Mute
    assert "Mute" in str(read_manifest(directory).reason)


def test_closing_twice_is_closing_once(directory: Path) -> None:
    run = Run(directory)
    run.close(status="interrupted", reason="enough")
    run.close()
    assert (read_manifest(directory).status, read_manifest(directory).reason) == (
        "interrupted",
        "enough",
    )
    assert event_names(directory) == ["start", "end"]
    run.event("late")  # counted as lost, not raised
    assert event_names(directory) == ["start", "end"]


def test_ranks_other_than_0_write_records_and_nothing_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with Run(directory, config={"rate": 0.1}) as run:
        assert (run.rank, run.world_size) == (1, 2)
        assert os.listdir(directory) == ["records"]
        with Run(directory, rank=0) as first:
            assert run.manifest == first.manifest
    assert os.listdir(directory / "records")
    assert not (directory / "lock.json").exists()
    assert [event["event"] for event in events(directory, rank=1)] == ["start", "end"]


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(directory: Path, rank: int, world_size: int) -> None:
    with pytest.raises(SettingError, match=f"rank {rank}"):
        Run(directory, rank=rank, world_size=world_size)
    assert not directory.exists()


def test_two_live_runs_in_one_directory_are_refused(directory: Path) -> None:
    with Run(directory) as run:
        content = (directory / "run.json").read_bytes()

        def second_process() -> None:
            with pytest.raises(RunLocked):
                Run(directory)
            with pytest.raises(RunLocked):
                Run(directory, break_lock=True)

        assert run_in_child(second_process) == 0
        assert (directory / "run.json").read_bytes() == content
        assert run.records(LOG).append({"step": 1})
    assert event_names(directory) == ["start", "end"]


def test_a_killed_run_still_says_running_and_leaves_a_dead_lock(directory: Path) -> None:
    die_in(directory)
    assert read_manifest(directory).status == RUNNING
    owner = read_owner(RunLayout(directory).lock)
    assert owner is not None
    assert owner.state() == DEAD
    assert list(read_records(directory / "records" / "log.rank0.jsonl")) == [{"step": 1}]


def test_a_killed_run_is_taken_over_and_that_is_recorded(directory: Path) -> None:
    die_in(directory)
    run_id = read_manifest(directory).run_id
    owner = read_owner(RunLayout(directory).lock)
    assert owner is not None
    with Run(directory) as run:
        assert (run.manifest.run_id, run.manifest.num_starts) == (run_id, 2)
    assert event_names(directory) == ["start", "takeover", "start", "end"]
    assert events(directory)[1]["previous"] == dataclasses.asdict(owner)


def test_a_run_on_another_machine_is_refused_unless_taken_over(directory: Path) -> None:
    with Run(directory):
        pass
    owner = dataclasses.replace(current_owner(), host="elsewhere")
    RunLayout(directory).lock.write_text(json.dumps(dataclasses.asdict(owner)))
    with pytest.raises(RunLocked) as caught:
        Run(directory)
    assert "break_lock=True" in str(caught.value.hint)
    with Run(directory, break_lock=True):
        pass
    assert event_names(directory) == ["start", "end", "takeover", "start", "end"]


def test_a_kill_while_the_manifest_is_written_leaves_the_old_one_and_the_litter_is_swept(
    directory: Path,
) -> None:
    with Run(directory, config=1):
        pass

    def restart() -> None:
        with faults_of("replace", kill):
            Run(directory, config=2)

    assert run_in_child(restart) == KILLED
    assert read_manifest(directory).settings == 1
    assert len([name for name in os.listdir(directory) if name.startswith(".sonde-tmp-")]) == 1
    with Run(directory) as run:
        assert run.manifest.num_starts == 2
    assert sorted(os.listdir(directory)) == ["records", "run.json"]


def test_a_damaged_manifest_is_refused_and_the_lock_given_back(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "run.json").write_text("{")
    for _ in range(2):
        with pytest.raises(DamagedFile, match=r"run\.json"):
            Run(directory)
    assert (directory / "run.json").read_text() == "{"
    assert not RunLayout(directory).lock.exists()


@pytest.mark.parametrize("operation", ["mkdir", "write", "fsync", "replace"])
def test_a_disk_that_fails_at_the_start_is_refused_before_the_first_step(
    directory: Path, operation: str
) -> None:
    with faults_of(operation, failing(errno.ENOSPC)), pytest.raises(RunError) as caught:
        Run(directory)
    assert caught.value.cause == os.strerror(errno.ENOSPC)
    assert caught.value.hint
    with Run(directory) as run:
        assert run.manifest.num_starts == 1


@pytest.mark.parametrize("place", ["file", "file/x", "nul\0byte"])
def test_an_impossible_directory_is_refused_with_cause_and_hint(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError) as caught:
        Run(tmp_path / place)
    assert caught.value.cause
    assert caught.value.hint


def test_a_disk_that_fails_at_the_end_is_reported_and_stops_nobody(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Run(directory) as run, faults_of("write", failing(errno.ENOSPC)):
        assert not run.records(LOG).append({"step": 1})
        run.close()
    assert "No space left on device" in caplog.text
    assert read_manifest(directory).status == RUNNING
    assert not run.layout.lock.exists()


def test_a_forked_worker_that_leaves_the_block_does_not_end_its_parents_run(
    directory: Path,
) -> None:
    with Run(directory) as run:

        def worker() -> None:
            with run:
                run.records(LOG).append({"worker": 1})

        assert run_in_child(worker) == 0
        assert read_manifest(directory).status == RUNNING
        assert run.layout.lock.exists()
        assert run.records(LOG).append({"worker": 0})
    assert read_manifest(directory).status == FINISHED
    assert len(list(read_records(run.layout.record_file(LOG, 0)))) == 2
    assert event_names(directory) == ["start", "end"]


def test_a_run_stays_where_it_began_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Run("x") as run:
        assert str(run.directory) == "x"
        monkeypatch.chdir("elsewhere")
        assert run.records(LOG).append({"step": 1})
    assert read_manifest(tmp_path / "x").status == FINISHED
    assert os.listdir(tmp_path / "elsewhere") == []
    monkeypatch.chdir(tmp_path)


def test_a_directory_deleted_during_the_run_stops_nobody(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.records.append._CHECK_SECONDS", 0.0)
    with Run(directory) as run:
        for path in sorted(directory.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        directory.rmdir()
        assert run.records(LOG).append({"step": 1})
    assert read_manifest(directory).status == FINISHED
    assert list(read_records(run.layout.record_file(LOG, 0))) == [{"step": 1}]


def test_two_processes_that_start_in_one_directory_at_once_are_told_apart(directory: Path) -> None:
    go, start = os.pipe()
    results, tell = os.pipe()
    over, end = os.pipe()

    def begin() -> None:
        os.close(start)
        os.close(end)
        os.read(go, 1)
        try:
            with Run(directory):
                os.write(tell, b"running ")
                os.read(over, 1)
        except RunLocked:
            os.write(tell, b"refused ")

    pids = [start_child(begin) for _ in range(2)]
    os.close(start)
    told = b""
    while told.count(b" ") < 2:
        told += os.read(results, 100)
    os.close(end)
    assert [exit_code_of(pid) for pid in pids] == [0, 0]
    for descriptor in (go, results, tell, over):
        os.close(descriptor)
    assert sorted(told.split()) == [b"refused", b"running"]
    assert read_manifest(directory).num_starts == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(0), "finished"),
        (SystemExit(None), "finished"),
        (SystemExit(143), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(1), "failed"),
        (ValueError("x"), "failed"),
    ],
)
def test_how_a_run_was_left_is_noted(tmp_path: Path, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), Run(tmp_path):
        raise error
    assert read_manifest(tmp_path).status == status
