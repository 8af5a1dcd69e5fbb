"""Several processes and threads append to one file; another process follows it. Nothing is lost,
torn or given twice.
"""

import collections
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fault_injection import exit_code_of, start_child

from sonde.records.append import RecordFile
from sonde.records.reader import LineScanner, read_records

NUM_PROCESSES = 4
NUM_RECORDS = 5000


def write_numbered(path: Path, writer: int, num_records: int) -> None:
    draw = random.Random(writer)
    with RecordFile(path) as file:
        for number in range(num_records):
            length = draw.choice([0, 20, 200, 3000]) if number % 500 else 100_000
            assert file.append(
                {"writer": writer, "number": number, "text": chr(97 + writer) * length}
            )


def check_all_there(path: Path, num_writers: int, num_records: int) -> None:
    by_writer: dict[int, list[int]] = collections.defaultdict(list)
    reading = read_records(path)
    for record in reading:
        assert set(record["text"]) <= {chr(97 + record["writer"])}
        by_writer[record["writer"]].append(record["number"])
    assert (reading.num_bad, reading.torn_bytes) == (0, 0)
    assert by_writer == {writer: list(range(num_records)) for writer in range(num_writers)}


@pytest.mark.slow
def test_four_processes_append_to_one_file_and_nothing_is_lost_or_torn(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    def writer(number: int) -> None:
        write_numbered(path, number, NUM_RECORDS)

    # mypy infers no lambda with a default
    pids = [start_child(lambda number=number: writer(number)) for number in range(NUM_PROCESSES)]  # type: ignore[misc]
    assert [exit_code_of(pid) for pid in pids] == [0] * NUM_PROCESSES
    check_all_there(path, NUM_PROCESSES, NUM_RECORDS)


@pytest.mark.slow
def test_a_file_opened_before_fork_is_shared_by_all_children(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RecordFile(path) as file:

        def child(writer: int) -> None:
            for number in range(1000):
                assert file.append({"writer": writer, "number": number, "text": ""})

        # mypy infers no lambda with a default
        pids = [start_child(lambda writer=writer: child(writer)) for writer in range(1, 3)]  # type: ignore[misc]
        child(0)
        assert [exit_code_of(pid) for pid in pids] == [0, 0]
        assert file.num_lost == 0
    check_all_there(path, 3, 1000)


@pytest.mark.slow
def test_eight_threads_with_a_file_object_each_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    threads = [
        threading.Thread(target=write_numbered, args=(path, writer, 500)) for writer in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_all_there(path, 8, 500)


@pytest.mark.slow
def test_following_two_live_writers_gives_every_record_once(tmp_path: Path) -> None:
    path = tmp_path / "records" / "log.jsonl"
    pids: list[int] = []

    def writer(number: int) -> None:
        time.sleep(0.02)  # the follower is there first, and waits for the file
        write_numbered(path, number, 1000)

    # mypy infers no lambda with a default
    pids = [start_child(lambda number=number: writer(number)) for number in range(2)]  # type: ignore[misc]
    ended: list[int] = []

    def all_ended() -> bool:
        for pid in pids:
            if pid not in ended and os.waitpid(pid, os.WNOHANG)[0]:
                ended.append(pid)
        return len(ended) == len(pids)

    scanner = LineScanner(path)
    seen = []
    is_last = False
    while not is_last:
        is_last = all_ended()
        if path.exists():
            with path.open("rb") as file:
                records = [json.loads(line) for _, line in scanner.lines(file)]
            seen += [(record["writer"], record["number"]) for record in records]
    assert sorted(seen) == [(writer, number) for writer in range(2) for number in range(1000)]


@pytest.mark.slow
def test_an_interpreter_that_ends_without_closing_has_written_everything(tmp_path: Path) -> None:
    code = (
        "import sys, threading\nfrom sonde.records.append import RecordFile\nfile ="
        " RecordFile(sys.argv[1])\nthreading.Thread(target=lambda: [file.append({'number': n}) for"
        " n in range(2000)]).start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "x")],
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert [record["number"] for record in read_records(tmp_path / "x")] == list(range(2000))
