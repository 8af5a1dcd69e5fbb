"""`sonde replay` on several local ranks: a rank that dies ends the command at once and is named."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sonde.errors import SettingError, SondeError
from sonde.records.replay_order import ReplayOrder, write_answer
from sonde.run import Run

RECIPE = """
import os, sys, time

def pieces(settings, device):
    if os.environ["RANK"] == "1":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(3)
    time.sleep(100)
"""


@pytest.mark.slow
def test_a_rank_that_dies_while_rank_0_waits_is_named(tmp_path: Path) -> None:
    (tmp_path / "two_ranks.py").write_text(RECIPE)
    with Run(tmp_path / "run") as run:
        run.records("steps").append(
            {"type": "STEP", "step": 1, "epoch": 1, "loss": 1.0, "weight": 1.0, "lr": 0.1}
        )
    started = time.monotonic()
    flags = ["--step", "1", "--world-size", "2", "--recipe", "two_ranks:pieces"]
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "replay", "run", *flags],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert time.monotonic() - started < 80
    assert "out of luck" in done.stderr
    assert "exitcode  : 3" in done.stderr
    assert "rank      : 1 (local_rank: 1)" in done.stderr
    assert "error: the replay ended with exit code 1 and without an answer" in done.stderr


def test_the_first_rank_to_answer_counts(tmp_path: Path) -> None:
    order = ReplayOrder(run="", verb="replay", answer=str(tmp_path / "answer.json"))
    write_answer(order, SettingError("no luck", hint="try again"))
    write_answer(order, SondeError("rank 0 lost rank 1"))
    assert (tmp_path / "answer.json").read_text() == '{"error":["no luck",null,"try again"]}\n'
