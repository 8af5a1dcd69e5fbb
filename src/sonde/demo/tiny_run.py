"""A tiny real training run: predict the next byte of the standard library's docstrings.

A stand-in until the full demonstration (prepare, train, spike, diagnose, skip) replaces it: real text, a real model, a
real run directory, about two seconds on one core.
"""

import inspect
import json
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor, nn

from sonde.errors import SettingError
from sonde.records.manifest import new_run_id
from sonde.run import Run

_NUM_BYTES: Final = 256


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TinyRunSettings:
    """Settings of the tiny run."""

    num_steps: int = 200
    """Updates to make."""
    batch_size: int = 64
    """Windows of text per update."""
    context: int = 8
    """Bytes the model sees before the one it predicts."""
    width: int = 64
    """Width of the hidden layer."""
    learning_rate: float = 3e-3
    """Of AdamW."""
    seed: int = 1
    """Of weights and batches."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "context", "width"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 1, not {getattr(self, name)}")


def train_tiny_run(out: Path, settings: TinyRunSettings) -> Path:
    """Train into a new run directory below `out`; returns it."""
    with Run(out / new_run_id(), settings=settings, seeds={"torch": settings.seed}) as run:
        for step, loss in enumerate(_losses(_corpus(), settings)):
            run.logger.log(step=step, data={"loss": loss, "bits_per_byte": loss / math.log(2)})
        return run.directory


def _losses(text: Tensor, settings: TinyRunSettings) -> Iterator[float]:
    """The loss of each update, in nats per byte."""
    generator = torch.Generator().manual_seed(settings.seed)
    model = nn.Sequential(
        nn.Embedding(_NUM_BYTES, 16),
        nn.Flatten(),
        nn.Linear(16 * settings.context, settings.width),
        nn.GELU(),
        nn.Linear(settings.width, _NUM_BYTES),
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05, generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    window = torch.arange(settings.context + 1)
    for _ in range(settings.num_steps):
        starts = torch.randint(len(text) - settings.context, (settings.batch_size, 1), generator=generator)
        rows = text[starts + window]
        loss = nn.functional.cross_entropy(model(rows[:, :-1]), rows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def _corpus() -> Tensor:
    """Docstrings that every Python has, as bytes."""
    texts = [inspect.getdoc(thing) or "" for module in (textwrap, json, inspect) for thing in vars(module).values()]
    return torch.tensor(list("\n\n".join(texts).encode()))
