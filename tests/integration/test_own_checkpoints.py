"""A script that keeps no states in the run is replayed from checkpoints of its own, after kill -9
too.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpointing_words import BAD_STEP

from sonde.data.skip_list import SkipList
from sonde.forensics.rollback import plan_way_back
from sonde.records.journal import read_steps
from sonde.records.replay_order import ReplayOrder, launch

SCRIPT = Path(__file__).parents[1] / "checkpointing_script.py"
HOSTS = Path(__file__).parents[1] / "checkpointing_hosts.py"
WORDS = Path(__file__).parents[1] / "checkpointing_words.py"
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
def test_a_rollback_goes_back_to_a_checkpoint_of_the_script(tmp_path: Path) -> None:
    killed(tmp_path)
    run = tmp_path / "run"
    newest = tmp_path / "out" / "step-40.pt"
    plan = plan_way_back(run, LAST, SkipList(), "")
    assert plan.host is not None
    assert (plan.host.host, plan.checkpoint, plan.host.path) == ("script", 40, str(newest))
    # One that is gone is passed over; without any, the training begins again.
    newest.unlink()
    assert plan_way_back(run, LAST, SkipList(), "").checkpoint == 30
    assert plan_way_back(run, 10, SkipList(), "").checkpoint == 0


@pytest.mark.slow
def test_ranks_are_replayed_from_a_checkpoint_that_rank_0_wrote(tmp_path: Path) -> None:
    killed(tmp_path, num_ranks=2)
    resume = ["--resume", str(tmp_path / "out" / "step-20.pt")]
    found = replayed(tmp_path, LAST, *resume, num_ranks=2)
    assert found["from_step"] == 20
    assert found["reproduced"] is True
    assert not [text for text in found["differences"] if "loss" in text or "gradient" in text]


@pytest.mark.soak
def test_parts_of_a_model_are_replayed_from_a_distributed_checkpoint(tmp_path: Path) -> None:
    killed(tmp_path, "--shard", num_ranks=2)
    resume = ["--resume", str(tmp_path / "out" / "step-20")]
    found = replayed(tmp_path, LAST, "--shard", *resume, num_ranks=2)
    assert found["from_step"] == 20
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


def answer_of(folder: Path, *words: str) -> dict[str, Any]:
    """Run a verb of sonde's and return its document."""
    command = [sys.executable, "-m", "sonde", *words, "--json"]
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.slow
def test_an_event_is_diagnosed_and_undone_from_the_scripts_own_checkpoint(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(WORDS)], cwd=tmp_path, check=True)
    # Without a step, too, it begins at the newest checkpoint before the event.
    verdict = answer_of(tmp_path, "diagnose", "run", "--again", "--yes")
    assert verdict["step"] == BAD_STEP
    assert verdict["causes"][0]["cause"] == "garbled_text"
    assert any(
        "from the checkpoint after step 150" in str(tried) for tried in verdict["experiments"]
    )
    plan = answer_of(tmp_path, "rollback", "run", "--step", str(BAD_STEP), "--apply")
    assert plan["checkpoint"] == 150
    assert plan["command"][-2:] == ["--resume", "out-150.pt"]
    bad_row = (BAD_STEP - 1) * 4 + 2
    assert plan["skip"] == {"train": [bad_row]}
    # The printed command goes on from there without the row, and nothing jumps.
    subprocess.run([sys.executable, *plan["command"][1:]], cwd=tmp_path, check=True)
    steps = read_steps(tmp_path / "run").by_number
    assert len(steps) == 200
    assert steps[BAD_STEP].loss < 2 * steps[BAD_STEP - 1].loss
