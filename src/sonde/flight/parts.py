"""What a flight recorder is made of, handed around: the training's own objects, and what listens to them and keeps them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from sonde.checkpoint.store import CheckpointStore
from sonde.flight.again import Again
from sonde.flight.training_state import TrainingState
from sonde.flight.watch import LoopWatch
from sonde.run import Run


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """One training and its recorder's parts; for a replay, where its states come from."""

    run: Run
    model: nn.Module
    optimizer: torch.optim.Optimizer
    device_type: str
    decode: Callable[[list[int]], str] | None
    """Makes text of tokens."""
    state: TrainingState
    """What is kept and restored."""
    store: CheckpointStore
    """Where states are kept."""
    again: Again
    """Makes forwards again."""
    watch: LoopWatch
    """Listens."""

    def steps(self) -> list[int]:
        """After how many updates each kept state is."""
        return self.store.folder.steps()

    def is_good(self, step: int) -> bool:
        """Does every byte of a kept state verify?"""
        return not self.store.folder.problems(step)

    def collect(self) -> Mapping[str, Any]:
        """The state of now."""
        return self.state.collect()

    def load(self, step: int) -> dict[str, Any]:
        """A kept state; of sharded weights, this rank's part. Every rank must call it."""
        with self.watch.quiet():
            document = self.store.folder.document(step)["state"]
            optimizer = document.get("optimizer")
            has_moments = isinstance(optimizer, dict) and bool(optimizer.get("state"))
            return self.store.load(step, self.state.template(has_moments=has_moments))

    def restore(self, state: Any) -> None:
        """Put the training into a state."""
        with self.watch.quiet():
            self.state.restore(state)
