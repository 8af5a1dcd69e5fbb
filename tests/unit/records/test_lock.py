"""One live run per directory: the living are refused, the dead taken over, the unknown asked
about.
"""

import dataclasses
import errno
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_injection import KILLED, exit_code_of, failing, faults_of, run_in_child, start_child

from sonde.errors import RunError, RunLocked
from sonde.records import lock as lock_module
from sonde.records.lock import ALIVE, DEAD, ELSEWHERE, Owner, RunLock, current_owner, read_owner

NEVER_A_PID = 2**22 + 1
"""One more than Linux ever gives."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock.json"


@pytest.fixture
def other_process() -> Iterator[int]:
    """A live process of ours that does nothing."""
    pid = start_child(lambda: time.sleep(600))
    yield pid
    os.kill(pid, signal.SIGKILL)
    assert exit_code_of(pid) == KILLED


def write_owner(path: Path, **changes: object) -> Owner:
    """A lock of a process like us but for `changes`."""
    # several types in one dict
    owner = dataclasses.replace(current_owner(), **changes)  # type: ignore[arg-type]
    path.write_text(json.dumps(dataclasses.asdict(owner)))
    return owner


def test_a_lock_names_its_owner_and_goes_when_released(path: Path) -> None:
    lock = RunLock(path)
    owner = read_owner(path)
    assert owner is not None
    assert (owner.pid, owner.host, owner.state()) == (os.getpid(), socket.gethostname(), ALIVE)
    assert owner.boot
    assert owner.process_start
    assert lock.previous is None
    lock.release()
    lock.release()
    assert not path.exists()


def test_a_live_owner_is_refused_even_with_force(path: Path) -> None:
    first = RunLock(path)
    for force in (False, True):
        with pytest.raises(RunLocked) as caught:
            RunLock(path, force=force)
        assert str(os.getpid()) in str(caught.value.cause)
        assert caught.value.hint
    first.release()
    RunLock(path).release()


def test_a_live_owner_in_another_process_is_refused(path: Path) -> None:
    ready, told = os.pipe()

    def hold() -> None:
        RunLock(path)
        os.write(told, b"x")
        time.sleep(600)

    pid = start_child(hold)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    os.close(told)
    with pytest.raises(RunLocked, match=f"process {pid} "):
        RunLock(path)
    os.kill(pid, signal.SIGKILL)
    # Not waited for yet, so still listed by the system: dead all the same.
    owner = read_owner(path)
    assert owner is not None
    deadline = time.monotonic() + 30
    while owner.state() != DEAD and time.monotonic() < deadline:
        time.sleep(0.001)
    assert exit_code_of(pid) == KILLED
    lock = RunLock(path)
    assert lock.previous is not None
    assert lock.previous.pid == pid
    lock.release()


def test_a_dead_process_is_taken_over_from(path: Path) -> None:
    assert run_in_child(lambda: RunLock(path)) == 0
    dead = read_owner(path)
    assert dead is not None
    assert dead.state() == DEAD
    lock = RunLock(path)
    assert lock.previous == dead
    lock.release()


def test_a_reused_process_id_is_not_the_owner(path: Path, other_process: int) -> None:
    owner = write_owner(path, pid=other_process, process_start="1")
    assert owner.state() == DEAD
    assert RunLock(path).previous == owner


def test_an_owner_from_before_the_last_boot_is_dead(path: Path) -> None:
    owner = write_owner(path, boot="another boot")
    assert owner.state() == DEAD
    assert RunLock(path).previous == owner


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {"pid_namespace": "pid:[1]"}])
def test_an_owner_that_cannot_be_asked_is_refused_with_a_hint_and_taken_over_by_force(
    path: Path, changes: dict[str, str]
) -> None:
    owner = write_owner(path, pid=NEVER_A_PID, **changes)
    assert owner.state() == ELSEWHERE
    before = path.read_bytes()
    with pytest.raises(RunLocked) as caught:
        RunLock(path)
    assert "break_lock=True" in str(caught.value.hint)
    assert path.read_bytes() == before
    assert RunLock(path, force=True).previous == owner


def test_a_process_that_the_system_hides_counts_as_alive(
    path: Path, other_process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = write_owner(path, pid=other_process, process_start="1")
    gone = write_owner(path, pid=NEVER_A_PID, process_start="1")
    huge = write_owner(path, pid=10**30, process_start="1")
    monkeypatch.setattr(lock_module, "_process_start", lambda _pid: "")
    assert (owner.state(), gone.state(), huge.state()) == (ALIVE, DEAD, DEAD)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0",
        b'{"host"',
        b"[]",
        b"5",
        b"null",
        b'{"pid":5}',
        b'{"host":"x","pid":"5"}',
        b'{"host":"x","pid":-1}',
        b"[" * 100_000,
    ],
)
def test_a_torn_lock_is_no_lock(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_owner(path) is None
    lock = RunLock(path)
    assert lock.previous is None
    lock.release()


def test_fields_of_a_newer_version_are_overlooked(path: Path) -> None:
    owner = write_owner(path)
    path.write_text(json.dumps(dataclasses.asdict(owner) | {"colour": "red"}))
    assert read_owner(path) == owner


def test_a_lock_taken_by_someone_else_is_not_released(path: Path) -> None:
    lock = RunLock(path)
    other = write_owner(path, host="elsewhere")
    lock.release()
    assert read_owner(path) == other


def test_releasing_a_lock_that_was_deleted_leaves_nothing(path: Path) -> None:
    lock = RunLock(path)
    path.unlink()
    lock.release()
    assert not path.exists()


def test_a_forked_child_does_not_release_its_parents_lock(path: Path) -> None:
    lock = RunLock(path)
    assert run_in_child(lock.release) == 0
    assert path.exists()
    lock.release()


def test_a_lock_that_cannot_be_written_is_refused_with_cause_and_hint(
    path: Path, tmp_path: Path
) -> None:
    with faults_of("write", failing(errno.ENOSPC)), pytest.raises(RunError) as full:
        RunLock(path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError) as link:
        RunLock(path)
    assert [full.value.cause, link.value.cause] == [
        "No space left on device",
        "Too many levels of symbolic links",
    ]
    assert full.value.hint
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_of_processes_racing_for_a_stale_lock_exactly_one_wins(path: Path) -> None:
    for _ in range(10):
        write_owner(path, pid=NEVER_A_PID, process_start="1")
        go, start = os.pipe()
        results, tell = os.pipe()
        over, end = os.pipe()

        def race(
            go: int = go, start: int = start, tell: int = tell, over: int = over, end: int = end
        ) -> None:
            os.close(start)
            os.close(end)
            os.read(go, 1)  # ends when the parent closes its end
            try:
                RunLock(path)
            except RunLocked:
                os.write(tell, b"lost ")
            else:
                os.write(tell, b"won ")
            # the winner must outlive the race: from a dead owner anyone may take over
            os.read(over, 1)

        pids = [start_child(race) for _ in range(4)]
        os.close(start)
        told = b""
        while told.count(b" ") < 4:
            told += os.read(results, 100)
        os.close(end)
        assert [exit_code_of(pid) for pid in pids] == [0, 0, 0, 0]
        assert sorted(told.split()) == [b"lost", b"lost", b"lost", b"won"]
        for descriptor in (go, results, tell, over):
            os.close(descriptor)


@pytest.mark.slow
def test_taking_and_releasing_from_many_processes_never_lets_two_in(
    path: Path, tmp_path: Path
) -> None:
    inside = tmp_path / "inside"

    def work() -> None:
        num_entries = 0
        deadline = time.monotonic() + 60
        while num_entries < 20 and time.monotonic() < deadline:
            try:
                lock = RunLock(path)
            except RunLocked:
                continue
            inside.mkdir()  # fails when another one is inside
            num_entries += 1
            inside.rmdir()
            lock.release()
        assert num_entries == 20

    pids = [start_child(work) for _ in range(4)]
    assert [exit_code_of(pid) for pid in pids] == [0, 0, 0, 0]
    assert not path.exists()
