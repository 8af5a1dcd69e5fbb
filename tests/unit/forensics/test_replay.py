"""Replay: any update of a run again, bit for bit, or with one thing changed; and everything it may not touch stays."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_corpus import TINY, prepare_corpus

from sonde.forensics.replay import Replay
from sonde.records.steps import read_steps
from sonde.train.recipe_settings import RecipeSettings
from sonde.train.session import train_run

NUM_UPDATES = 13


def train(data: Path, run: Path, **others: Any) -> Path:
    values: dict[str, Any] = {
        **TINY,
        "max_tokens": 64,
        "max_updates": NUM_UPDATES,
        "warmup": 4,
        "lr": 1e-2,
        "dropout": 0.2,
        "update_freq": 2,
        "save_every_updates": 4,
        "save_every_epochs": None,
        "keep_checkpoints": 0,
        "validate_every_updates": 3,
        **others,
    }
    train_run(RecipeSettings(data=str(data), **values), run)
    return run


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("text"), languages=("en",))


@pytest.fixture(scope="module")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(pairs, tmp_path_factory.mktemp("runs") / "translation")


def weights(replay: Replay) -> list[float]:
    values: list[float] = torch.cat([p.detach().flatten() for p in replay.pieces.task.model.parameters()]).tolist()
    return values


def test_every_step_gives_the_recorded_loss_and_norm_bit_for_bit(run: Path) -> None:
    recorded = read_steps(run).by_number
    assert list(recorded) == list(range(1, NUM_UPDATES + 1))
    replay = Replay(run)
    for step in (13, 2, 9, 5, 1, 12, 6):
        used = replay.go_to(step)
        assert used == (step - 1) // 4 * 4
        result = replay.update()
        assert result.loss == recorded[step].loss
        assert result.grad_norm == recorded[step].grad_norm
    assert replay.deviations == []
    assert replay.differences() == ()
