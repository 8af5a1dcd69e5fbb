"""What a loop of the table gets: a recorder or its absence, data, and a place to work in.

Nothing here imports sonde before a watched loop asks for a recorder: importing it is part of what
the table tries.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

NUM_STEPS = 80
SPIKE_STEP = 70
"""Counted from 1: late enough for the rules to know what is normal."""


class Unwatched:
    """Stands in for a recorder in the loop that is not watched."""

    def step(self, train_step: Callable[..., Any], batch: Any, *, last: bool | None = None) -> Any:
        return train_step(batch) if last is None else train_step(batch, last)

    def loss(self, loss: Tensor) -> Tensor:
        return loss

    def grad_norm(self, norm: Any) -> Any:
        return norm

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        return iter(loader)

    def restore(self) -> int:
        return 0

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> "Unwatched":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Context:
    """One loop, watched or not, with an event planted or not."""

    folder: Path
    is_watched: bool
    has_spike: bool
    hashed: list[Any] = field(default_factory=list)
    """What must be the same in the end: modules and tensors."""
    num_updates: int = NUM_STEPS
    """How many steps should be recorded."""
    losses: list[float] = field(default_factory=list)
    """What losses should be recorded, for a loop that says so."""
    said: str = ""
    """What the log must contain, for a loop that cannot be recorded whole."""
    recorders: list[Any] = field(default_factory=list)

    def record(self, model: Any, optimizer: Any, *, run: str = "run", **arguments: Any) -> Any:
        self.hashed.append(model)
        if not self.is_watched:
            return Unwatched()
        import sonde

        recorder = sonde.Recorder(self.folder / run, model, optimizer, **arguments)
        self.recorders.append(recorder)
        return recorder

    def scale(self, step: int) -> float:
        """The factor of the inputs at a 1-based step: large where an event is planted."""
        return 60.0 if self.has_spike and step == SPIKE_STEP else 1.0


def seed() -> None:
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002  the generator that users' code draws from
    torch.manual_seed(7)


def network(inputs: int = 8, outputs: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))


def language_model(vocab: int = 40, width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(vocab, width), nn.Linear(width, vocab))
