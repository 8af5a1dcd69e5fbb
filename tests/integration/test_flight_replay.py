"""A script of one's own, watched, equals itself unwatched; and any of its steps is replayed bit for bit in a new process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.flight.launching import launch
from sonde.forensics.verdict import read_verdict
from sonde.records.replay_order import ReplayOrder
from sonde.records.steps import read_steps

SCRIPT = Path(__file__).parents[1] / "flight_script.py"
GARBLED = 60


def command(run: Path, mode: str, *more: str) -> list[str]:
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if mode in ("ddp", "fsdp") else []
    )
    # The first row that is garbled is row 2 of rank 0's batch and of rank 1's: one event.
    return [sys.executable, *launcher, str(SCRIPT), str(run), "--mode", mode, "--garbled", str(GARBLED), *more]


def trained(run: Path, mode: str, *more: str) -> str:
    done = subprocess.run(command(run, mode, *more), capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONWARNINGS": "ignore"}


def replayed(run: Path, mode: str, step: int) -> dict[str, Any]:
    order = ReplayOrder(run=str(run), verb="replay", answer="", step=step)
    found: dict[str, Any] = launch(order, command(run, mode), None)["replay"]
    return found


def files_of(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["float32", "bf16", "accumulate", "compile", "ddp", "fsdp"])
def test_a_watched_script_equals_itself_unwatched_and_is_replayed_to_the_bit(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    assert "same" in trained(run, mode)
    event = GARBLED // 2 if mode == "accumulate" else GARBLED
    is_event = (run / "forensics" / f"verdict-{event}.json").exists()
    assert is_event == (mode != "accumulate")  # spread over two micro-batches it is no event
    before = files_of(run)
    # From the state after 25, so that all updates in between are made again too.
    found = replayed(run, mode, 48)
    assert found["replay"]["from_step"] == 25
    assert found["replay"]["reproduced"] is True
    assert not [one for one in found["replay"]["differences"] if "loss" in one or "gradient" in one]
    assert found["grad_norm"] == read_steps(run).by_number[48].grad_norm
    assert files_of(run) == before


@pytest.mark.slow
def test_a_script_is_diagnosed_by_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    trained(run, "ddp", "--alone")
    order = ReplayOrder(run=str(run), verb="diagnose", answer="")
    launch(order, command(run, "ddp", "--alone"), None)
    verdict = read_verdict(run, GARBLED)
    assert verdict.replay is not None
    assert verdict.replay.reproduced is True
    assert verdict.causes[0].cause == "garbled_text"
    assert len(verdict.causes[0].suspects) == 2  # one on each rank
