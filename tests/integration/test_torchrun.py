"""`sonde train` under torchrun, with real processes: ranks that join, disagree, are killed, stall
or are told to stop.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_corpus import TINY, prepare_corpus

pytestmark = pytest.mark.slow

SIZES = [word for name, size in TINY.items() for word in (f"--{name.replace('_', '-')}", str(size))]
QUICK = [*SIZES, "--max-tokens", "64", "--log-interval", "1", "--warmup", "2", "--ordered"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("pairs"))


@contextmanager
def torchrun(
    corpus: Path, run: Path, *options: str, max_restarts: int = 0
) -> Iterator["subprocess.Popen[str]"]:
    """Two ranks of `sonde train`; whatever is left of them is killed at the end."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
    ]
    command += ["--max-restarts", str(max_restarts), "--monitor-interval", "0.1"]
    command += ["-m", "sonde", "train", str(corpus), "--run-dir", str(run), *QUICK, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    process = subprocess.Popen(
        command,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def records(run: Path, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    path = run / "records" / f"{kind}.rank{rank}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def losses(run: Path) -> dict[int, float]:
    """The training loss by update; a later record of the same update stands for it."""
    found = records(run, "log")
    return {
        record["step"][1]: record["data"]["train.loss"]
        for record in found
        if "train.loss" in record.get("data", {})
    }


def wait_for_update(run: Path, update: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while max(losses(run), default=0) < update:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pid_of(run: Path, rank: int) -> int:
    pid: int = [
        record["pid"] for record in records(run, "events", rank) if record["event"] == "start"
    ][-1]
    return pid


def test_a_killed_rank_comes_back_and_the_run_goes_on_as_if_nothing_had_happened(
    corpus: Path, tmp_path: Path
) -> None:
    updates = ["--max-updates", "60", "--save-every-updates", "5"]
    with torchrun(corpus, tmp_path / "killed", *updates, max_restarts=1) as process:
        wait_for_update(tmp_path / "killed", 8, process)
        os.kill(pid_of(tmp_path / "killed", 1), signal.SIGKILL)
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
    resumed = [
        record["step"]
        for record in records(tmp_path / "killed", "events")
        if record["event"] == "resume"
    ]
    assert len(resumed) == 1
    assert 5 <= resumed[0] < 60
    assert "stopped: max_updates: 60 steps were made" in (out + err).splitlines()
    # Two ranks of one micro-batch are bitwise one process with two, and a resume leaves no trace.
    command = [
        sys.executable,
        "-m",
        "sonde",
        "train",
        str(corpus),
        "--run",
        str(tmp_path / "whole"),
        *QUICK,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, *updates, "--update-freq", "2"], env=environment, check=True, capture_output=True
    )
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


def test_a_rank_that_stalls_is_named_by_its_peers_within_the_timeout(
    corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with torchrun(corpus, run, "--max-updates", "100000", "--timeout-seconds", "5") as process:
        wait_for_update(run, 3, process)
        stalled = pid_of(run, 1)
        os.kill(stalled, signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while (
            not any(record["event"] == "end" for record in records(run, "events"))
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        os.kill(stalled, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    ends = [record for record in records(run, "events") if record["event"] == "end"]
    assert "rank 0 lost rank 1 of 2" in ends[-1]["reason"]
    assert "rank 0 lost rank 1 of 2" in err


def test_sigterm_saves_on_all_ranks_and_only_rank_0_speaks(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with torchrun(corpus, run, "--max-updates", "100000", "--output", "tcap") as process:
        wait_for_update(run, 3, process)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    stops = {
        rank: [record for record in records(run, "events", rank) if record["event"] == "stop"]
        for rank in (0, 1)
    }
    assert [stop["reason"] for stop in stops[0] + stops[1]] == ["SIGTERM was received"] * 2
    assert stops[0][0]["step"] == stops[1][0]["step"]
    assert (run / "checkpoints" / f"step-{stops[0][0]['step']:012d}").is_dir()
    lines = [line for line in out.splitlines() if "train.loss" in line]
    assert len(lines) == len(
        {line.partition("Iteration: ")[2].split()[0] + line[:9] for line in lines}
    )
    assert lines
    assert all("rank : 0" in line for line in lines)
