"""A script of one's own, watched, equals itself unwatched; and any of its steps is replayed bit for
bit in a new process.
"""

import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sonde.forensics.verdict import read_verdict
from sonde.records.journal import read_steps
from sonde.records.replay_order import ReplayOrder, launch
from sonde.spikes.spike_log import read_spikes

SCRIPT = Path(__file__).parents[1] / "recorder_script.py"
GARBLED = 60


def command(run: Path, mode: str, *more: str, garbled: int | None = GARBLED) -> list[str]:
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        if mode in ("ddp", "fsdp", "tp")
        else []
    )
    # The first row that is garbled is row 2 of rank 0's batch and of rank 1's: one event.
    fault = [] if garbled is None else ["--garbled", str(garbled)]
    return [sys.executable, *launcher, str(SCRIPT), str(run), "--mode", mode, *fault, *more]


def trained(run: Path, mode: str, *more: str) -> str:
    done = subprocess.run(
        command(run, mode, *more), capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONWARNINGS": "ignore",
    }


def sonde(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sonde", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )


def replayed(run: Path, mode: str, step: int) -> dict[str, Any]:
    order = ReplayOrder(run=str(run), verb="replay", step=step)
    found: dict[str, Any] = launch(order, command(run, mode), None)["replay"]
    return found


def files_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        "float32",
        pytest.param("bf16", marks=pytest.mark.long_fault),
        pytest.param("accumulate", marks=pytest.mark.long_fault),
        "compile",
        "ddp",
        "fsdp",
        "tp",
    ],
)
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
    assert not [
        difference
        for difference in found["replay"]["differences"]
        if "loss" in difference or "gradient" in difference
    ]
    assert found["grad_norm"] == read_steps(run).by_number[48].grad_norm
    assert files_of(run) == before


@pytest.mark.slow
def test_a_script_is_diagnosed_by_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    trained(run, "ddp", "--alone")
    order = ReplayOrder(run=str(run), verb="diagnose")
    launch(order, command(run, "ddp", "--alone"), None)
    verdict = read_verdict(run, GARBLED)
    assert verdict.replay is not None
    assert verdict.replay.reproduced is True
    assert verdict.causes[0].cause == "garbled_text"
    assert len(verdict.causes[0].suspects) == 2  # one on each rank
    # The recorded command is torchrun's.
    done = sonde("replay", str(run), "--step", "48", "--again", "--yes")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "torch.distributed.run" in done.stdout + done.stderr
    assert "reproduced bit for bit" in done.stdout


@pytest.mark.slow
def test_a_learning_rate_that_was_too_high_is_found_by_running_the_script(tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = command(
        run, "float32", "--alone", "--count", "80", "--high-rate-at", "64", garbled=None
    )
    subprocess.run(script, check=True, capture_output=True, env=environment())
    (event,) = [spike.event for spike in read_spikes(run).spikes]
    assert event.first_step in (65, 66)
    done = sonde("diagnose", str(run), "--", *script)
    assert done.returncode == 0, done.stderr[-3000:]
    first = read_verdict(run, event.first_step).causes[0]
    assert (first.cause, first.suspects) == ("learning_rate", ())


@pytest.mark.slow
def test_a_damaged_flight_file_is_told_in_words_and_what_lies_before_it_is_replayed(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    script = command(run, "float32", "--alone")
    subprocess.run(script, check=True, capture_output=True, env=environment())
    (path,) = (run / "flight").glob("batches-000000000025.rank0.bin")
    content = bytearray(path.read_bytes())
    content[int(len(content) * 0.6)] ^= 255
    path.write_bytes(content)
    assert sonde("replay", str(run), "--step", "30", "--", *script).returncode == 0
    refused = sonde("replay", str(run), "--step", "48", "--", *script)
    assert refused.returncode != 0
    assert "the batch of step" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_a_disk_that_takes_no_more_stops_no_training(tmp_path: Path) -> None:
    run = tmp_path / "run"
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
    script = command(run, "float32", garbled=None)
    done = subprocess.run(
        script, capture_output=True, text=True, check=False, env=environment(), preexec_fn=limit
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "same" in done.stdout
    assert "batches cannot be kept" in done.stderr
    assert list(read_steps(run).by_number) == list(range(1, 71))
    assert all(path.stat().st_size <= 150_000 for path in run.rglob("*") if path.is_file())
