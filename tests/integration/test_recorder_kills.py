"""kill -9 anywhere: every step whose record is in the run is replayed bit for bit afterwards, and
training goes on where it can.
"""

import itertools
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recorder_loops import Training, batches

from sonde.forensics.case import same_bits
from sonde.forensics.replay import Replay
from sonde.recorder.options import RecorderOptions
from sonde.recorder.takeover import seams_of
from sonde.records.journal import read_steps

SETTINGS = RecorderOptions(state_every=15, keep_states=4, max_bytes=1 << 30)


def train_on(run: Path) -> None:
    """Go on for ever."""
    training = Training(run, settings=SETTINGS)
    assert training.recorder is not None
    start = training.recorder.restore()
    for batch in itertools.islice(forever(), start, None):
        training.make(batch)


def forever() -> Iterator[Any]:
    for epoch in itertools.count():
        yield from batches(200, seed=epoch)


def replay_all(run: Path) -> None:
    """Every recorded step since the oldest kept state, one after another, in a process that has
    trained nothing.
    """
    records = read_steps(run).by_number
    training = Training(run.parent / "elsewhere", settings=SETTINGS)
    assert training.recorder is not None
    parts = training.recorder.training
    object.__setattr__(parts.run, "layout", type(parts.run.layout)(run))
    object.__setattr__(parts, "store", type(parts.store)(run / "flight" / "states"))
    replay = Replay(run, seams=seams_of(parts, training.train_step, next(forever()), records))
    kept = [step for step in replay.checkpoints() if step < max(records)]
    assert kept, "there is a state from before the last step"
    # A kill may take the records of the last updates before a state that was kept: those are not in
    # the run, and are passed over.
    for step in [record for record in records if record > kept[0]]:
        replay.go_to(step)
        made = replay.update()
        assert same_bits(made.loss, records[step].loss), (step, kept)
        assert made.grad_norm == records[step].grad_norm, (step, kept)
    os._exit(0)


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except Exception:  # noqa: BLE001  the parent sees an exit code alone
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def num_lines(run: Path) -> int:
    try:
        return (run / "records" / "steps.rank0.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:  # not yet there, or just moved aside by an attempt that begins anew
        return 0


def kill_and_replay(run: Path, num_kills: int, seed: int) -> int:
    rng = random.Random(seed)
    replayed = 0
    for _ in range(num_kills):
        child = in_child(lambda: train_on(run))
        wanted = num_lines(run) + rng.randint(1, 40)
        give_up = time.monotonic() + 30
        while num_lines(run) < wanted and time.monotonic() < give_up:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if run.exists() and read_steps(run).by_number and (run / "flight").exists():
            assert os.waitpid(in_child(lambda: replay_all(run)), 0)[1] == 0
            replayed += 1
    return replayed


@pytest.mark.slow
def test_what_was_recorded_before_a_kill_is_replayed(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    assert kill_and_replay(tmp_path / "run", 4, seed=1) >= 1


@pytest.mark.soak
def test_what_was_recorded_before_a_hundred_kills_is_replayed(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    assert kill_and_replay(tmp_path / "run", 100, seed=2) > 50
