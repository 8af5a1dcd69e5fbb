"""kill -9 of a writer at random moments: every record whose call had returned is in the file."""

import contextlib
import mmap
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_injection import KILLED, exit_code_of, start_child

from sonde.records.append import RecordFile
from sonde.records.reader import read_records

NUM_KILLS_SOAK = 1000


@contextlib.contextmanager
def shared_counter() -> Iterator[memoryview]:
    """A number in memory that parent and children share; it is set with one store, so a kill cannot
    tear it.
    """
    with (
        mmap.mmap(-1, mmap.PAGESIZE) as memory,
        memoryview(memory) as view,
        view.cast("q") as counter,
    ):
        yield counter


def write_until_killed(path: Path, counter: memoryview, life: int) -> None:
    """Append numbered records of many lengths; after each call that returned, say so in memory that
    outlives us.
    """
    draw = random.Random(life)
    file = RecordFile(path)
    number = counter[0]
    while True:
        # Up to 20 kB: more than a page, so that a kill can land in the middle of a write.
        record = {
            "number": number,
            "life": life,
            "text": "x" * draw.choice([0, 10, 200, 5000, 20_000]),
        }
        if not file.append(record):
            os._exit(3)
        number += 1
        counter[0] = number


def kill_writers(path: Path, num_kills: int) -> tuple[int, int]:
    """Start and kill `num_kills` writers of one file; returns how many records were told written,
    and torn lines.
    """
    draw = random.Random(num_kills)
    num_told = num_torn = 0
    with shared_counter() as counter:
        for life in range(num_kills):
            path.unlink(missing_ok=True)
            # Half of the lives find a file that ends in a torn line.
            if life % 2:
                path.write_bytes(b'{"number":-1,"li')
            counter[0] = 0
            # mypy infers no lambda with a default
            pid = start_child(lambda life=life: write_until_killed(path, counter, life))  # type: ignore[misc]
            while counter[0] == 0:
                time.sleep(0.0001)
            time.sleep(draw.random() * 0.01)
            os.kill(pid, signal.SIGKILL)
            assert exit_code_of(pid) == KILLED
            told = counter[0]
            reading = read_records(path)
            numbers = [record["number"] for record in reading]
            # One more than told: the kill came between the write and the telling.
            assert numbers in (list(range(told)), list(range(told + 1))), f"life {life}"
            assert reading.num_bad == life % 2, (
                "nothing but the planted fragment is damaged in the middle"
            )
            num_told += told
            num_torn += bool(reading.torn_bytes)
    return num_told, num_torn


@pytest.mark.slow
def test_100_kills_at_random_moments_lose_no_record_whose_call_returned(tmp_path: Path) -> None:
    num_told, _ = kill_writers(tmp_path / "log.jsonl", 100)
    assert num_told > 1000


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_1000_kills_at_random_moments_lose_no_record_whose_call_returned(tmp_path: Path) -> None:
    num_told, _ = kill_writers(tmp_path / "log.jsonl", NUM_KILLS_SOAK)
    assert num_told > 10_000


@pytest.mark.slow
def test_lives_that_follow_one_another_on_one_file_add_up(tmp_path: Path) -> None:
    """A run that is killed and resumed again and again: what all lives wrote is there, fragments
    are counted.
    """
    path = tmp_path / "log.jsonl"
    draw = random.Random(5)
    with shared_counter() as counter:
        counter[0] = 0
        for life in range(20):
            before = counter[0]
            # mypy infers no lambda with a default
            pid = start_child(lambda life=life: write_until_killed(path, counter, life))  # type: ignore[misc]
            while counter[0] == before:
                time.sleep(0.0001)
            time.sleep(draw.random() * 0.01)
            os.kill(pid, signal.SIGKILL)
            assert exit_code_of(pid) == KILLED
        told = counter[0]
    with RecordFile(path) as file:
        assert file.append({"number": told})
    reading = read_records(path)
    numbers = [record["number"] for record in reading]
    assert sorted(set(numbers)) == list(range(told + 1))
    # A record written but not told before the kill is written again by the next life.
    assert len(numbers) <= told + 1 + 20
    assert reading.num_bad <= 20
    assert reading.torn_bytes == 0
