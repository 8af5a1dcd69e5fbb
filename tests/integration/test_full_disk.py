"""A disk that is full, or a file at its limit, stops no caller; freed, writing goes on and the gap
is told.
"""

import errno
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_injection import run_in_child

from sonde.errors import RunError
from sonde.records.append import GAP, RecordFile
from sonde.records.files import write_file
from sonde.records.manifest import FINISHED, read_manifest
from sonde.records.reader import read_records
from sonde.run import Run

DISK_BYTES = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte. Needs root."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", place], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(
            "mounting a small tmpfs needs root; the tests with a file size limit run everywhere"
        )
    yield place
    subprocess.run(["umount", place], check=True)


def fill(place: Path) -> Path:
    """Take up what is left of the disk."""
    ballast = place / "ballast"
    with (
        ballast.open("wb", buffering=0) as file,
        pytest.raises(OSError, match="No space left on device"),
    ):
        _ = [file.write(b"x" * 4096) for _ in range(DISK_BYTES)]
    return ballast


def append_until_written(file: RecordFile, number: int) -> int:
    """Append numbered records until one is written again; returns the number after it. A failing
    disk rests a while.
    """
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        number += 1
        if file.append({"number": number}):
            return number + 1
        time.sleep(0.01)
    pytest.fail("writing did not resume")


def check_exact(path: Path, told: dict[int, bool]) -> None:
    """Exactly the records that were told written are there, and the gap records count exactly the
    others.
    """
    numbers: list[int] = []
    gaps: list[dict[str, Any]] = []
    for record in read_records(path):
        if record.get("type") == GAP:
            gaps.append(record)
        else:
            numbers.append(record["number"])
    assert numbers == [number for number, written in told.items() if written]
    assert sum(gap["num_lost"] for gap in gaps) == sum(not written for written in told.values())


def test_records_on_a_full_disk_stop_no_caller_and_resume_with_a_gap(small_disk: Path) -> None:
    path = small_disk / "records" / "log.jsonl"
    values: dict[int, bool] = {}
    with RecordFile(path) as file:
        for number in range(3000):  # three times the disk
            values[number] = file.append({"number": number, "text": "x" * 1000})
        assert values[0]
        assert not values[2999]
        num_lost = file.num_lost
        assert num_lost == sum(not written for written in values.values()) > 1000
        # Room again: somebody else's file goes. Here it is our own, cut as an operator in need
        # would.
        with path.open("r+b") as other:
            other.truncate(path.stat().st_size // 2)
        kept = [record["number"] for record in read_records(path)]
        after = append_until_written(file, 3000)
    records = list(read_records(path))
    (gap,) = [record for record in records if record.get("type") == GAP]
    assert (gap["num_lost"], gap["errno"]) == (file.num_lost, errno.ENOSPC)
    assert records[-2] == gap
    assert [record["number"] for record in records if record is not gap] == [*kept, after - 1]


def test_space_freed_by_others_is_used_again_and_again(small_disk: Path) -> None:
    path = small_disk / "log.jsonl"
    values: dict[int, bool] = {}
    number = 0
    with RecordFile(path) as file:
        for _ in range(3):
            ballast = fill(small_disk)
            for _ in range(200):
                values[number] = file.append({"number": number, "text": "x" * 500})
                number += 1
            assert not values[number - 1]
            ballast.unlink()
            time.sleep(0.11)  # a failing disk is not asked more often than ten times a second
            values[number] = file.append({"number": number})
            assert values[number]
            number += 1
    check_exact(path, values)


def test_an_atomic_file_on_a_full_disk_keeps_the_old_content(small_disk: Path) -> None:
    write_file(small_disk / "x", b"old")
    fill(small_disk)
    with pytest.raises(OSError, match="No space left on device"):
        write_file(small_disk / "x", b"new" * 100_000)
    assert (small_disk / "x").read_bytes() == b"old"
    assert sorted(os.listdir(small_disk)) == ["ballast", "x"]


def test_a_run_refuses_to_start_on_a_full_disk_and_survives_one_later(small_disk: Path) -> None:
    ballast = fill(small_disk)
    with pytest.raises(RunError, match="No space left on device"):
        Run(small_disk / "run")
    ballast.unlink()
    with Run(small_disk / "run") as run:
        ballast = fill(small_disk)
        for step in range(100):
            run.records("log").append({"number": step, "text": "x" * 500})
        assert run.records("log").num_lost > 0
        ballast.unlink()
    assert read_manifest(small_disk / "run").status == FINISHED
    with Run(small_disk / "run"):
        fill(small_disk)
    assert not (small_disk / "run" / "lock.json").exists()


def test_a_file_at_its_size_limit_stops_no_caller_and_resumes_when_the_limit_goes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.jsonl"

    def write_to_the_limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        values: dict[int, bool] = {}
        with RecordFile(path) as file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_003, hard))
            for number in range(300):
                values[number] = file.append({"number": number, "text": "x" * 1000})
            assert not values[299]
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            time.sleep(0.11)
            values[300] = file.append({"number": 300})
            assert values[300]
        check_exact(path, values)
        (gap,) = [record for record in read_records(path) if record.get("type") == GAP]
        assert gap["errno"] == errno.EFBIG

    assert run_in_child(write_to_the_limit) == 0


def test_a_process_out_of_descriptors_goes_on_recording(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    def exhaust() -> None:
        with RecordFile(path) as file:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            )
            with pytest.raises(OSError, match="Too many open files"):
                _ = [os.open(tmp_path, os.O_RDONLY) for _ in range(200)]
            for number in range(1000):
                assert file.append({"number": number})
            file._next_check = 0.0  # also when it looks whether its file is still there
            assert file.append({"number": 1000})

    assert run_in_child(exhaust) == 0
    assert [record["number"] for record in read_records(path)] == list(range(1001))
