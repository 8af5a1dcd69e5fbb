"""Old content or new, never a mixture, at every call that a save makes; and nothing left behind."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checksummed import write_checksums
from fault_injection import (
    KILLED,
    Fault,
    disk_calls_of,
    failing,
    fault_at,
    faults_of,
    kill,
    kill_after,
    run_in_child,
    short_write,
)

from sonde.records.checksums import verify_checksums
from sonde.records.files import atomic_directory, atomic_file, sweep_temporaries, write_file

OLD = b"old" * 1000
NEW = b"new" * 2000


def save_file(path: Path) -> None:
    write_file(path, NEW)


def save_directory(path: Path) -> None:
    with atomic_directory(path) as temporary:
        write_file(temporary / "model", NEW)
        (temporary / "part").mkdir()
        (temporary / "part" / "rows").write_bytes(OLD)
        write_checksums(temporary)


def under_fault(
    save: Callable[[Path], None], path: Path, position: int, fault: Fault
) -> Callable[[], None]:
    def action() -> None:
        with fault_at(position, fault):
            save(path)

    return action


def leftovers(directory: Path) -> list[str]:
    return [entry.name for entry in directory.iterdir() if entry.name.startswith(".sonde-tmp-")]


def test_a_save_writes_syncs_renames_and_syncs_the_directory_in_that_order(tmp_path: Path) -> None:
    calls = disk_calls_of(lambda: save_file(tmp_path / "x"))
    assert calls == [
        "open_file",
        "write",
        "fsync",
        "close",
        "replace",
        "open_file",
        "fsync",
        "close",
    ]
    assert (tmp_path / "x").read_bytes() == NEW


def test_every_file_and_folder_of_a_directory_is_synced_before_it_appears(tmp_path: Path) -> None:
    calls = disk_calls_of(lambda: save_directory(tmp_path / "checkpoint"))
    before_last_rename = calls[: len(calls) - calls[::-1].index("replace")]
    # model, rows, manifest; part/ and the directory itself
    assert before_last_rename.count("fsync") >= 3 + 2
    assert verify_checksums(tmp_path / "checkpoint") == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", [kill, kill_after])
def test_a_kill_at_any_call_leaves_the_old_file_or_the_new(tmp_path: Path, fault: Fault) -> None:
    path = tmp_path / "x"
    seen = set()
    for position in range(len(disk_calls_of(lambda: save_file(path)))):
        path.write_bytes(OLD)
        assert run_in_child(under_fault(save_file, path, position, fault)) == KILLED
        seen.add(path.read_bytes())
        assert path.read_bytes() in (OLD, NEW)
        sweep_temporaries(tmp_path)
        assert os.listdir(tmp_path) == ["x"]
        save_file(path)
        assert path.read_bytes() == NEW
    assert seen == {OLD, NEW}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [kill, kill_after])
def test_a_kill_at_any_call_leaves_no_directory_or_a_whole_one(
    tmp_path: Path, fault: Fault
) -> None:
    num_calls = len(disk_calls_of(lambda: save_directory(tmp_path / "counted")))
    seen = set()
    for position in range(num_calls):
        path = tmp_path / f"checkpoint{position}"
        assert run_in_child(under_fault(save_directory, path, position, fault)) == KILLED
        seen.add(path.exists())
        if path.exists():
            assert verify_checksums(path) == []
        else:
            save_directory(path)
            assert verify_checksums(path) == []
        sweep_temporaries(tmp_path)
        assert leftovers(tmp_path) == []
    assert seen == {True, False}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("save", [save_file, save_directory])
def test_an_error_at_any_call_is_raised_and_leaves_old_or_new_and_no_temporary(
    tmp_path: Path, save: Callable[[Path], None], code: int
) -> None:
    for position in range(len(disk_calls_of(lambda: save(tmp_path / "counted")))):
        path = tmp_path / f"x{position}"
        if save is save_file:
            path.write_bytes(OLD)
        with pytest.raises(OSError, match=os.strerror(code)), fault_at(position, failing(code)):
            save(path)
        assert leftovers(tmp_path) == []
        if save is save_file:
            assert path.read_bytes() in (OLD, NEW)
        else:
            assert not path.exists() or verify_checksums(path) == []


@pytest.mark.slow
def test_errors_leave_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for position in range(len(disk_calls_of(lambda: save_directory(tmp_path / "counted")))):
        with pytest.raises(OSError, match="error"), fault_at(position, failing(errno.EIO)):
            save_directory(tmp_path / f"x{position}")
    assert len(os.listdir("/proc/self/fd")) == before


def test_short_writes_change_nothing(tmp_path: Path) -> None:
    with faults_of("write", short_write):
        save_file(tmp_path / "x")
        save_directory(tmp_path / "checkpoint")
    assert (tmp_path / "x").read_bytes() == NEW
    assert verify_checksums(tmp_path / "checkpoint") == []


def test_a_failed_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(OLD)

    def interrupted_file() -> None:
        with atomic_file(path) as file:
            file.write(NEW)
            raise KeyboardInterrupt

    def interrupted_directory() -> None:
        with atomic_directory(tmp_path / "d") as temporary:
            (temporary / "y").write_bytes(NEW)
            raise KeyboardInterrupt

    for interrupted in (interrupted_file, interrupted_directory):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["x"]


def test_a_directory_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(FileExistsError), atomic_directory(tmp_path / "d"):
        pytest.fail("the block must not begin")
    assert os.listdir(tmp_path) == ["d"]


def test_a_symbolic_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(OLD)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    save_file(tmp_path / "link")
    assert (tmp_path / "target").read_bytes() == OLD
    assert not (tmp_path / "link").is_symlink()


def test_sweeping_removes_only_what_is_provably_ours_and_dead(tmp_path: Path) -> None:
    def die_while_saving() -> None:
        with fault_at(2, kill):
            save_file(tmp_path / "file")

    def die_while_saving_a_directory() -> None:
        with fault_at(3, kill):
            save_directory(tmp_path / "directory")

    assert run_in_child(die_while_saving) == run_in_child(die_while_saving_a_directory) == KILLED
    dead = leftovers(tmp_path)
    assert len(dead) == 2
    machine = dead[0].split("-")[2]
    stays = [
        f".sonde-tmp-{machine}-{os.getpid()}-00000000-alive",
        f".sonde-tmp-{machine}-{os.getpid()}x-00000000-strange",
        f".sonde-tmp-{'0' * 8}-999999999-00000000-elsewhere",
        ".sonde-tmp-999999999-00000000-older",
        ".sonde-tmp-",
        "file.tmp",
    ]
    for name in stays:
        (tmp_path / name).write_text("")
    with atomic_file(tmp_path / "mine"):
        sweep_temporaries(tmp_path)
        assert not set(os.listdir(tmp_path)) & set(dead)
    assert sorted(os.listdir(tmp_path)) == sorted([*stays, "mine"])


def test_sweeping_takes_links_for_links(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    with atomic_file(tmp_path / "x"):
        machine = leftovers(tmp_path)[0].split("-")[2]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("kept")
    (tmp_path / f".sonde-tmp-{machine}-{process.stdout.strip()}-00000000-link").symlink_to(
        tmp_path / "precious"
    )
    sweep_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["precious", "x"]
    assert (tmp_path / "precious" / "data").read_text() == "kept"
