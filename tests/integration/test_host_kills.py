"""kill -9 in a loop of one's own, in Hugging Face's Trainer and in Lightning: the training that
resumes ends with the weights of one that was never killed, and what was recorded is replayed bit
for bit.
"""

import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

import killed_training
import pytest

from sonde.records.journal import read_steps

SCRIPT = Path(killed_training.__file__)


def start(host: str, run: Path) -> int:
    """Start or resume a training in a forked child, and return its process number."""
    child = os.fork()
    if child == 0:
        log = os.open(f"{run}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        warnings.simplefilter("default")  # those of the hosts are no errors here
        try:
            killed_training.main(host, run)
            os._exit(0)
        except BaseException:  # noqa: BLE001  the parent sees the log and an exit code
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def run_whole(host: str, run: Path) -> None:
    assert os.waitpid(start(host, run), 0)[1] == 0, log_of(run)


def log_of(run: Path) -> str:
    return Path(f"{run}.log").read_text()[-3000:]


def digest_of(run: Path) -> str:
    return Path(f"{run}.done").read_text()


def num_records(run: Path) -> int:
    try:
        return (run / "records" / "steps.rank0.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def kill_at_random(host: str, run: Path, num_kills: int, seed: int) -> int:
    """Kill a training again and again, and let it end. Returns how often it was killed."""
    rng = random.Random(seed)
    killed = 0
    done = Path(f"{run}.done")
    for _ in range(num_kills):
        child = start(host, run)
        wanted = num_records(run) + rng.randint(0, 2 * killed_training.SAVE_EVERY)
        give_up = time.monotonic() + 60
        while not done.exists() and num_records(run) < wanted and time.monotonic() < give_up:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1))
        if done.exists():
            os.waitpid(child, 0)
            break
        os.kill(child, signal.SIGKILL)
        killed += 1
        os.waitpid(child, 0)
    if not done.exists():
        run_whole(host, run)
    return killed


def replay(host: str, run: Path, step: int) -> str:
    command = [sys.executable, "-m", "sonde", "replay", str(run), "--step", str(step), "--"]
    done = subprocess.run(
        [*command, sys.executable, str(SCRIPT), host, str(run)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "SONDE_COLOR": "never"},
    )
    return done.stdout + done.stderr


def check_kills(host: str, folder: Path, num_kills: int, seed: int) -> int:
    whole = folder / "whole"
    run_whole(host, whole)
    run = folder / "run"
    killed = kill_at_random(host, run, num_kills, seed)
    assert digest_of(run) == digest_of(whole), log_of(run)
    recorded = read_steps(run).by_number
    assert list(recorded) == list(range(1, killed_training.NUM_STEPS + 1)), log_of(run)
    expected = read_steps(whole).by_number
    assert [step.loss for step in recorded.values()] == [step.loss for step in expected.values()]
    said = replay(host, run, random.Random(seed).randint(65, killed_training.NUM_STEPS))
    assert "reproduced bit for bit" in said, said
    return killed


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("host", killed_training.HOSTS)
def test_a_training_killed_twenty_times_ends_like_one_that_was_not(
    host: str, tmp_path: Path
) -> None:
    killed = 0
    for seed in range(10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        killed += check_kills(host, folder, 5, seed)
        if killed >= 20:
            break
    assert killed >= 20


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("host", killed_training.HOSTS)
def test_a_training_killed_twice_ends_like_one_that_was_not(host: str, tmp_path: Path) -> None:
    assert check_kills(host, tmp_path, 2, seed=11) > 0
