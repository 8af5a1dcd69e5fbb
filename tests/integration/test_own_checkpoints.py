"""A script that keeps no states in the run is replayed from checkpoints of its own, after kill -9
too.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.records.journal import read_steps
from sonde.records.replay_order import ReplayOrder, launch

SCRIPT = Path(__file__).parents[1] / "checkpointing_script.py"
HOSTS = Path(__file__).parents[1] / "checkpointing_hosts.py"
LAST = 47
"""The step after which the training is killed; it has saved every ten steps."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def command(folder: Path, *more: str, num_ranks: int = 1) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    if num_ranks == 1:
        launcher = []
    places = [str(folder / "run"), str(folder / "out")]
    return [sys.executable, *launcher, str(SCRIPT), *places, *more]


def killed(folder: Path, *more: str, num_ranks: int = 1) -> None:
    """Train until the process is killed."""
    words = command(folder, "--kill-at", str(LAST), *more, num_ranks=num_ranks)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode != 0
    assert LAST in read_steps(folder / "run").by_number, done.stderr[-3000:]


def replayed(folder: Path, step: int, *more: str, num_ranks: int = 1) -> dict[str, Any]:
    order = ReplayOrder(run=str(folder / "run"), verb="replay", step=step)
    words = command(folder, *more, num_ranks=num_ranks)
    found: dict[str, Any] = launch(order, words, None)["replay"]["replay"]
    return found


@pytest.mark.slow
def test_every_step_since_a_checkpoint_of_the_script_is_replayed_to_the_bit(tmp_path: Path) -> None:
    killed(tmp_path)
    assert not (tmp_path / "run" / "flight" / "states").exists()
    resume = ["--resume", str(tmp_path / "out" / "step-20.pt")]
    # All steps in between are made again too, and one that came out otherwise would be named.
    found = replayed(tmp_path, LAST, *resume)
    assert found["from_step"] == 20
    assert found["reproduced"] is True
    assert not [text for text in found["differences"] if "loss" in text or "gradient" in text]


@pytest.mark.slow
def test_ranks_are_replayed_from_a_checkpoint_that_rank_0_wrote(tmp_path: Path) -> None:
    killed(tmp_path, num_ranks=2)
    resume = ["--resume", str(tmp_path / "out" / "step-30.pt")]
    found = replayed(tmp_path, 44, *resume, num_ranks=2)
    assert found["from_step"] == 30
    assert found["reproduced"] is True
    assert not [text for text in found["differences"] if "loss" in text or "gradient" in text]


@pytest.mark.soak
def test_parts_of_a_model_are_replayed_from_a_distributed_checkpoint(tmp_path: Path) -> None:
    killed(tmp_path, "--shard", num_ranks=2)
    resume = ["--resume", str(tmp_path / "out" / "step-30")]
    found = replayed(tmp_path, 44, "--shard", *resume, num_ranks=2)
    assert found["from_step"] == 30
    assert found["reproduced"] is True
    assert not [text for text in found["differences"] if "loss" in text or "gradient" in text]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "checkpoint"), [("huggingface", "checkpoint-20"), ("lightning", "step=20.ckpt")]
)
def test_a_host_is_replayed_from_its_own_checkpoints_after_kill_9(
    host: str, checkpoint: str, tmp_path: Path
) -> None:
    words = [sys.executable, str(HOSTS), host, str(tmp_path / "run"), str(tmp_path / "out")]
    last = [*words, "--kill-at", str(LAST)]
    done = subprocess.run(last, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert LAST in read_steps(tmp_path / "run").by_number, done.stderr[-3000:]
    assert not (tmp_path / "run" / "flight" / "states").exists()
    # The third last checkpoint: every step since is made again and compared.
    resume = ["--resume", str(tmp_path / "out" / checkpoint)]
    order = ReplayOrder(run=str(tmp_path / "run"), verb="replay", step=LAST)
    found = launch(order, [*words, *resume], None)["replay"]["replay"]
    assert found["from_step"] == 20
    assert found["reproduced"] is True
    assert not [text for text in found["differences"] if "loss" in text or "gradient" in text]
