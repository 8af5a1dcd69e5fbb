"""Appending never raises into the caller, loses nothing it said it wrote, and tells what it
lost.
"""

import errno
import logging
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from fault_injection import failing, fault_at, faults_of, run_in_child, short_write

from sonde.errors import RunError
from sonde.records import append as append_module
from sonde.records import disk
from sonde.records.append import GAP, RecordFile
from sonde.records.reader import read_records
from sonde.records.seal import unseal


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for the file at every call and try a failing disk at once, instead of after a while."""
    monkeypatch.setattr(append_module, "_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(append_module, "_RETRY_SECONDS", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records" / "log.rank0.jsonl"


def steps(path: Path) -> list[int]:
    """The steps in the file; gap records are left out."""
    return [record["step"] for record in read_records(path) if record.get("type") != GAP]


def gaps(path: Path) -> list[dict[str, Any]]:
    return [record for record in read_records(path) if record.get("type") == GAP]


def test_each_record_is_one_write_of_one_line(path: Path) -> None:
    with RecordFile(path) as file, faults_of("none", short_write) as calls:
        assert file.append({"step": 1})
        assert file.append_many([{"step": 2}, {"step": math.nan}])
        assert file.append_many([])
        assert calls == ["write", "write"]
    assert list(map(unseal, path.read_bytes().splitlines())) == [
        b'{"step":1}',
        b'{"step":2}',
        b'{"step":"NaN"}',
    ]


def test_opening_again_goes_on_where_the_file_ends(path: Path) -> None:
    for step in range(3):
        with RecordFile(path) as file:
            assert file.append({"step": step})
    assert steps(path) == [0, 1, 2]


@pytest.mark.parametrize("tail", [b'{"step":9', b"\0\0\0", b"\xe2\x82"])
def test_opening_a_torn_file_starts_on_a_fresh_line(path: Path, tail: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"step":1}\n' + tail)
    with RecordFile(path) as file:
        assert file.append({"step": 2})
    reading = read_records(path)
    assert [record["step"] for record in reading] == [1, 2]
    assert (reading.num_bad, reading.torn_bytes) == (1, 0)


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.ESTALE, errno.EBADF]
)
def test_a_failing_write_is_counted_reported_once_and_followed_by_a_gap(
    path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    with RecordFile(path) as file:
        assert file.append({"step": 0})
        with faults_of("write", failing(code)):
            assert [file.append({"step": step}) for step in (1, 2, 3)] == [False, False, False]
            assert file.append_many([{"step": 4}, {"step": 5}]) is False
        assert file.append({"step": 6})
        with faults_of("write", failing(code)):
            assert not file.append({"step": 7})
        assert file.append({"step": 8})
    assert steps(path) == [0, 6, 8]
    assert [(gap["num_lost"], gap["errno"], gap["reason"]) for gap in gaps(path)] == [
        (5, code, os.strerror(code)),
        (1, code, os.strerror(code)),
    ]
    assert all(gap["from"] <= gap["to"] for gap in gaps(path))
    assert file.num_lost == 6
    assert read_records(path).num_bad == 0
    messages = [record for record in caplog.records if record.name == "sonde"]
    assert len(messages) == 1
    assert os.strerror(code) in messages[0].getMessage()
    assert messages[0].levelno == logging.WARNING


def test_a_short_write_that_can_be_continued_loses_nothing(path: Path) -> None:
    with RecordFile(path) as file, faults_of("write", short_write):
        assert all(file.append({"step": step}) for step in range(10))
    assert steps(path) == list(range(10))
    assert file.num_lost == 0


def test_a_write_that_takes_no_byte_is_an_error_and_no_endless_loop(path: Path) -> None:
    with RecordFile(path) as file:
        with faults_of("write", lambda _operation, _real, _arguments: 0):
            assert not file.append({"step": 1})
        assert file.append({"step": 2})
    assert steps(path) == [2]
    assert gaps(path)[0]["errno"] == errno.EIO


@pytest.mark.parametrize("careful", [False, True])
def test_a_write_that_stops_halfway_loses_that_record_only(
    path: Path, careful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_module, "_CHECK_SECONDS", 0.0 if careful else 60.0)
    with RecordFile(path) as file:
        assert file.append({"step": 0})
        with faults_of("write", _fill_up()):
            assert not file.append({"step": 1})
        assert file.append({"step": 2})
    reading = read_records(path)
    assert [record.get("step", GAP) for record in reading] == [0, GAP, 2]
    assert reading.num_bad == 1  # the first half of the lost record
    assert gaps(path)[0]["errno"] == errno.ENOSPC


@pytest.mark.parametrize("careful", [False, True])
def test_of_a_batch_that_stops_halfway_only_the_missing_records_are_counted(
    path: Path, careful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_module, "_CHECK_SECONDS", 0.0 if careful else 60.0)
    with RecordFile(path) as file:
        with faults_of("write", _fill_up()):
            assert not file.append_many([{"step": step} for step in range(5)])
        assert file.append({"step": 9})
    assert steps(path) == [0, 1, 9]
    assert file.num_lost == gaps(path)[0]["num_lost"] == 3


def _fill_up() -> Any:
    """Half of the first write, then a full disk."""
    full = False

    def fault(operation: str, real: Any, arguments: tuple[Any, ...]) -> Any:
        nonlocal full
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        full = True
        return short_write(operation, real, arguments)

    return fault


def test_a_gap_that_was_told_is_not_told_again(path: Path) -> None:
    with RecordFile(path) as file:
        with faults_of("write", failing(errno.ENOSPC)):
            assert not file.append({"step": 0})

        def gap_but_not_record(operation: str, real: Any, arguments: tuple[Any, ...]) -> Any:
            descriptor, payload = arguments
            if payload.count(b"\n") == 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(descriptor, payload[: payload.index(b"\n", 1) + 1])

        with faults_of("write", gap_but_not_record):
            assert not file.append({"step": 1})
        assert file.append({"step": 2})
    assert [gap["num_lost"] for gap in gaps(path)] == [1, 1]
    assert (steps(path), file.num_lost) == ([2], 2)


def test_a_failing_disk_is_not_asked_at_every_call(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_module, "_RETRY_SECONDS", 60.0)
    with RecordFile(path) as file, faults_of("write", failing(errno.ENOSPC)) as calls:
        for step in range(100):
            assert not file.append({"step": step})
        assert calls.count("write") <= 2
        assert file.num_lost == 100


def test_a_deleted_directory_is_made_again(path: Path) -> None:
    with RecordFile(path) as file:
        assert file.append({"step": 0})
        path.unlink()
        path.parent.rmdir()
        assert file.append({"step": 1})
    assert steps(path) == [1]
    assert [gap["num_lost"] for gap in gaps(path)] == [1]
    assert "deleted" in gaps(path)[0]["reason"]


def test_a_deleted_directory_that_cannot_be_made_again_costs_records_and_nothing_else(
    path: Path,
) -> None:
    with RecordFile(path) as file:
        path.unlink()
        path.parent.rmdir()
        path.parent.write_text("in the way")
        assert not file.append({"step": 1})
        path.parent.unlink()
        assert file.append({"step": 2})
    assert steps(path) == [2]
    assert file.num_lost == 1


def test_a_replaced_file_is_taken_up_and_not_written_over(path: Path) -> None:
    with RecordFile(path) as file:
        assert file.append({"step": 0})
        (path.parent / "other").write_bytes(b'{"step":7}')
        (path.parent / "other").rename(path)
        assert file.append({"step": 1})
        assert file.append({"step": 2})
    assert steps(path) == [7, 1, 2]


def test_a_descriptor_closed_by_others_is_opened_again_without_loss(
    path: Path, tmp_path: Path
) -> None:
    with RecordFile(path) as file:
        assert file.append({"step": 0})
        os.close(file._descriptor)
        # Whoever opens a file next is given the same number: it must be neither written to nor
        # closed.
        with (tmp_path / "innocent").open("w") as innocent:
            assert innocent.fileno() == file._descriptor
            assert file.append({"step": 1})
            innocent.write("untouched")
        assert file.append({"step": 2})
    assert (tmp_path / "innocent").read_text() == "untouched"
    assert steps(path) == [0, 1, 2]
    assert file.num_lost == 0


def test_reopening_keeps_the_descriptors_number_for_threads_about_to_write(path: Path) -> None:
    with RecordFile(path) as file:
        before = file._descriptor
        path.unlink()
        assert file.append({"step": 1})
        assert file._descriptor == before
        assert not os.get_inheritable(before)
    assert steps(path) == [1]


def test_a_closed_file_counts_what_it_is_given(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = RecordFile(path)
    file.close()
    file.close()
    assert [file.append({"step": 1}), file.append_many([{"step": 2}, {"step": 3}])] == [
        False,
        False,
    ]
    assert file.num_lost == 3
    assert "the file was closed" in caplog.text
    assert path.read_bytes() == b""


def test_closing_writes_a_gap_that_is_still_open(path: Path) -> None:
    file = RecordFile(path)
    with faults_of("write", failing(errno.ENOSPC)):
        assert not file.append({"step": 1})
    file.close()
    assert [gap["num_lost"] for gap in gaps(path)] == [1]


def test_closing_on_a_failing_disk_does_not_raise(path: Path) -> None:
    file = RecordFile(path)
    with faults_of("write", failing(errno.EIO)), faults_of("close", failing(errno.EIO)):
        assert not file.append({"step": 1})
        file.close()
    assert file.num_lost == 1


def test_a_failed_sync_is_reported_and_not_raised(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RecordFile(path) as file:
        assert file.sync()
        with faults_of("fsync", failing(errno.EIO)):
            assert not file.sync()
    assert "cannot sync" in caplog.text


def test_a_log_handler_that_raises_does_not_reach_the_caller(path: Path) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("broken handler")

    handler = Broken()
    logging.getLogger("sonde").addHandler(handler)
    try:
        with RecordFile(path) as file, faults_of("write", failing(errno.ENOSPC)):
            assert not file.append({"step": 1})
    finally:
        logging.getLogger("sonde").removeHandler(handler)


def test_a_symbolic_link_is_refused(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError) as caught:
        RecordFile(path)
    assert caught.value.cause == os.strerror(errno.ELOOP)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "place", ["file/log.jsonl", "folder", "nul\0byte/log.jsonl", "x" * 300 + "/log.jsonl"]
)
def test_an_impossible_place_is_refused_at_once_with_cause_and_hint(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError) as caught:
        RecordFile(tmp_path / place)
    assert caught.value.cause
    assert caught.value.hint


def test_a_full_disk_is_refused_at_opening_and_leaves_no_descriptor_open(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"torn")
    before = os.listdir("/proc/self/fd")
    with faults_of("write", failing(errno.ENOSPC)), pytest.raises(RunError, match="No space left"):
        RecordFile(path)
    assert os.listdir("/proc/self/fd") == before


def test_no_permission_is_refused_at_opening(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o555)

    def open_as_nobody() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        with pytest.raises(RunError, match="Permission denied"):
            RecordFile(tmp_path / "records" / "log.jsonl")

    exit_code = run_in_child(open_as_nobody)
    os.chmod(tmp_path, 0o755)
    assert exit_code == 0


def test_changing_the_working_directory_does_not_move_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent.parent)
    with RecordFile("records/log.rank0.jsonl") as file:
        assert file.append({"step": 0})
        monkeypatch.chdir("/")
        assert file.append({"step": 1})
    assert steps(path) == [0, 1]


def test_eight_threads_share_a_file(path: Path) -> None:
    with RecordFile(path) as file:

        def work(thread: int) -> None:
            for number in range(500):
                file.append({"step": thread * 500 + number})

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(steps(path)) == list(range(4000))
    assert (file.num_lost, read_records(path).num_bad) == (0, 0)


def test_a_fork_while_another_thread_holds_the_lock_does_not_hang_the_child(path: Path) -> None:
    held = threading.Event()
    done = threading.Event()
    with RecordFile(path) as file:

        def hold() -> None:
            with file._lock:
                held.set()
                done.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)

        def child() -> None:
            assert file.append({"step": 1})
            file.close()

        exit_code = run_in_child(child)
        done.set()
        thread.join()
        assert exit_code == 0
        assert file.append({"step": 2})
    assert steps(path) == [1, 2]


def test_a_single_fault_at_any_call_loses_at_most_the_record_at_hand(path: Path) -> None:
    for position in range(4):
        path.unlink(missing_ok=True)
        with RecordFile(path) as file:
            with fault_at(position, failing(errno.EIO)):
                sentences = [file.append({"step": step}) for step in range(4)]
            assert sentences.count(False) == 1
        assert steps(path) == [step for step in range(4) if sentences[step]]
        assert sum(gap["num_lost"] for gap in gaps(path)) == file.num_lost == 1


def test_writing_all_goes_on_after_short_writes_and_stops_at_errors(tmp_path: Path) -> None:
    descriptor = disk.open_file(tmp_path / "x", os.O_WRONLY | os.O_CREAT, 0o644)
    with faults_of("write", short_write) as calls:
        disk.write_all(descriptor, b"0123456789")
    assert len(calls) > 2
    with faults_of("write", failing(errno.ENOSPC)), pytest.raises(OSError, match="No space left"):
        disk.write_all(descriptor, b"more")
    os.close(descriptor)
    assert (tmp_path / "x").read_bytes() == b"0123456789"
