"""Two real ranks: weights that part are told once, with the tensor; replicas and ranks that are
independent on purpose are left alone; a rank that lags is named.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rank_group import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.records.journal import read_events
from sonde.run import Run
from sonde.spikes.quiet_rules import QUIET_FAILURE


def training(
    folder: Path,
    num_steps: int,
    *,
    is_replicated: bool = True,
    seed_of_rank: int = 0,
    before: Callable[[int, int, nn.Module], None] = lambda *_: None,
) -> Callable[[int], Any]:
    """Return what a rank does: train, with something done `before` a step."""

    def work(rank: int) -> list[str]:
        torch.manual_seed(1 + seed_of_rank * rank)
        plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        model: nn.Module = DistributedDataParallel(plain) if is_replicated else plain
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        dice = torch.Generator().manual_seed(rank)
        options = RecorderOptions(state_every=0, checks=False)
        with Run(folder) as run, Recorder(run, model, optimizer, options=options) as recorder:

            def train_step(inputs: Tensor) -> Tensor:
                before(rank, recorder.num_updates + 1, plain)
                loss = recorder.loss(F.cross_entropy(model(inputs), inputs[:, :3].argmax(1)))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            for _ in range(num_steps):
                recorder.step(train_step, torch.randn(8, 6, generator=dice))
        return []

    return work


def told(folder: Path) -> list[tuple[str, str]]:
    found = read_events(folder, QUIET_FAILURE)
    return [(str(record["kind"]), str(record["sentence"])) for record in found]


def change_one_rank(rank: int, step: int, model: nn.Module) -> None:
    if rank == 1 and step == 100:
        with torch.no_grad():
            model.get_parameter("2.weight")[0, 0] += 1.0


def test_replicas_that_part_are_told_once_with_the_tensor(tmp_path: Path) -> None:
    run_ranks(2, training(tmp_path / "run", 420, before=change_one_rank))
    found = told(tmp_path / "run")
    assert [kind for kind, _ in found] == ["ranks_drift"]
    assert "rank 1" in found[0][1]


def test_replicas_that_stay_the_same_are_left_alone(tmp_path: Path) -> None:
    run_ranks(2, training(tmp_path / "run", 220))
    assert told(tmp_path / "run") == []


def test_independent_ranks_are_left_alone(tmp_path: Path) -> None:
    same_start = training(tmp_path / "same", 220, is_replicated=False)
    other_start = training(tmp_path / "other", 220, is_replicated=False, seed_of_rank=1)
    run_ranks(2, same_start)
    run_ranks(2, other_start)
    assert told(tmp_path / "same") == told(tmp_path / "other") == []


def lag(rank: int, step: int, model: nn.Module) -> None:
    del step, model
    if rank == 1:
        time.sleep(0.008)


def test_a_rank_that_lags_is_named(tmp_path: Path) -> None:
    run_ranks(2, training(tmp_path / "run", 420, before=lag))
    found = told(tmp_path / "run")
    assert [kind for kind, _ in found] == ["rank_lags"]
    assert "rank 1" in found[0][1]
