"""The logger among real processes and threads, and under `kill -9`: nothing torn, nothing lost that
was returned from.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from sonde.log import read

WRITER = """
import sys
from sonde.log import JSONStreamBackend, Logger, Verbosity
rank, num, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)], rank=rank) as logger:
    for step in range(num):
        text = "x" * (step % 700)
        value = {"loss": step / 7} if step % 3 else {"text": text}
        logger.log(step, {"writer": rank, **value})
assert logger.num_lost == 0
"""

THREADS = """
import sys, threading
from sonde.log import JSONStreamBackend, Logger, Verbosity
num_threads, num, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, path)])
def work(number):
    for step in range(num):
        value = {"loss": step / 7} if step % 3 else {"text": "x" * (step % 700)}
        logger.log(step, {"writer": number, **value})
threads = [threading.Thread(target=work, args=(number,)) for number in range(num_threads)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""

# Says on its output how far it has come, after each call has returned: what it said must be in the
# file.
KILLED = """
import os, sys
from sonde.log import JSONStreamBackend, Logger, Verbosity
logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, sys.argv[1])])
start = int(sys.argv[2])
for step in range(start, start + 10_000_000):
    note = {"note": "x" * (step % 300)} if step % 2 else {}
    logger.log(step, {"loss": step / 7, **note})
    os.write(1, b"%d\\n" % step)
"""


def start(script: str, *arguments: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE
    )


def check_all_there(path: Path, num_writers: int, num_records: int) -> None:
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    found = sorted((record["data"]["writer"], record["step"]) for record in records)
    assert found == [(writer, step) for writer in range(num_writers) for step in range(num_records)]


def finish(children: Sequence["subprocess.Popen[bytes]"]) -> None:
    for child in children:
        child.communicate(timeout=100)
        assert child.returncode == 0


@pytest.mark.slow
def test_four_processes_share_a_file_and_lose_and_tear_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shared.json"
    finish([start(WRITER, rank, 5000, path) for rank in range(4)])
    check_all_there(path, 4, 5000)
    assert len(read(path)) == 20_000
    assert read(path).num_bad == 0


@pytest.mark.slow
def test_eight_threads_share_a_logger_and_lose_and_tear_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shared.json"
    finish([start(THREADS, 8, 5000, path)])
    check_all_there(path, 8, 5000)


def kill_once(path: Path, first_step: int, delay_seconds: float) -> int:
    """Start the writer at `first_step`, kill it after a while, and give back the last step it said
    it had logged.
    """
    child = start(KILLED, path, first_step)
    assert child.stdout is not None
    said = child.stdout.readline()
    time.sleep(delay_seconds)
    os.kill(child.pid, signal.SIGKILL)
    said += child.stdout.read()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    return int(said[: said.rfind(b"\n")].rpartition(b"\n")[2])


def kill_many(path: Path, num_kills: int, seed: int) -> None:
    chance = random.Random(seed)
    first = 0
    for _ in range(num_kills):
        last = kill_once(path, first, chance.uniform(0.0, 0.05))
        steps = [record.step for record in read(path)]
        assert steps[: last + 1] == list(range(last + 1)), (
            "a record is missing that its call had returned from"
        )
        assert len(steps) <= last + 2  # the one that was under way may be there too
        first = last + 1  # the next start goes back to here, and supersedes it
    assert read(path).num_bad == 0


@pytest.mark.slow
def test_kill_9_at_random_loses_nothing_that_was_returned_from(tmp_path: Path) -> None:
    kill_many(tmp_path / "log.json", num_kills=4, seed=1)


@pytest.mark.soak
def test_kill_9_a_hundred_times(tmp_path: Path) -> None:
    for seed in range(20):
        kill_many(tmp_path / f"{seed}.json", num_kills=5, seed=seed)


@pytest.mark.slow
def test_exit_without_close_brings_out_everything(tmp_path: Path) -> None:
    script = """
import sys
from sonde.log import CSVBackend, JSONStreamBackend, Logger, Verbosity
table = CSVBackend(Verbosity.DEFAULT, sys.argv[1] + ".csv")
logger = Logger([table, JSONStreamBackend(1, sys.argv[1], every_n=4)])
for step in range(10):
    logger.log(step, {"loss": float(step)})
"""
    finish([start(script, tmp_path / "log.json")])
    assert [record.step for record in read(tmp_path / "log.json")] == [3, 7, 9]
    assert len((tmp_path / "log.json.csv").read_text().splitlines()) == 11


@pytest.mark.slow
def test_an_exception_in_training_is_not_lost_and_the_log_is_whole(tmp_path: Path) -> None:
    script = """
import sys
from sonde.log import JSONStreamBackend, Logger
with Logger([JSONStreamBackend(1, sys.argv[1])]) as logger:
    logger.log(1, {"loss": 1.0})
    raise KeyError("training")
"""
    command = [sys.executable, "-c", script, str(tmp_path / "log.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "KeyError: 'training'" in done.stderr
    assert len(read(tmp_path / "log.json")) == 1
