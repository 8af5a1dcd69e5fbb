"""A run to replay: a tiny model with dropout, two micro-batches an update, checkpoints and
evaluations on the way.
"""

from pathlib import Path
from typing import Any, Final

from small_corpus import TINY

from sonde.forensics.replay import Replay
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings

NUM_UPDATES: Final = 13
SAVED: Final = (4, 8, 12, 13)
"""After how many updates there are checkpoints."""


def small_settings(data: Path, **others: Any) -> RecipeSettings:
    """Three updates an epoch on the small corpus."""
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
    }
    return RecipeSettings(data=str(data), **(values | others))


def train_small(data: Path, run: Path, **others: Any) -> Path:
    """Train it; returns the run directory."""
    train_run(small_settings(data, **others), run)
    return run


def recorded_loss(replay: Replay, step: int) -> float:
    """The loss that the run wrote down for a step."""
    record = replay.recorded(step)
    assert record is not None
    return record.loss
