"""One training: its components, its state as a nested dict, and how to restore it; in a replay, the source of states.

The state consists of model, optimizer, named objects, and the generators of every rank. The states of model and
optimizer are saved as they are: complete, or this rank's shards (FSDP2, tensor parallel). Collecting them changes
nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from sonde import ranks
from sonde.checkpoint.store import CheckpointStore
from sonde.errors import SettingError
from sonde.flight.again import Again
from sonde.flight.settings import FlightSettings
from sonde.flight.watch import LoopWatch
from sonde.run import Run
from sonde.train.determinism import generators, set_generators
from sonde.train.saving import Stateful

StatefulT = TypeVar("StatefulT", bound=Stateful)


@final
@dataclass(kw_only=True, slots=True)
class Training:
    """The training that a recorder follows."""

    run: Run
    settings: FlightSettings
    model: nn.Module
    optimizer: torch.optim.Optimizer
    named: dict[str, Stateful]
    """Everything else that has a state."""
    device_type: str
    decode: Callable[[list[int]], str] | None
    """A function that converts tokens to text."""
    store: CheckpointStore
    """Where states are kept."""
    again: Again
    """The helper that repeats forward passes."""
    watch: LoopWatch
    """The hooks that observe the training loop."""
    is_sharded: bool = False
    """Whether every rank has only a part of the weights."""
    _waiting: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_sharded = any(isinstance(one, DTensor) for one in self.model.parameters())

    def add(self, name: str, part: StatefulT) -> StatefulT:
        """Add another stateful object; if its state was already restored, it is loaded now."""
        if name in self._waiting:
            part.load_state_dict(self._waiting.pop(name))
        self.named[name] = part
        return part

    def steps(self) -> list[int]:
        """Return the number of updates of each kept state."""
        return self.store.folder.steps()

    def is_good(self, step: int) -> bool:
        """Return whether every byte of a kept state verifies."""
        return not self.store.folder.problems(step)

    def collect(self) -> dict[str, Any]:
        """Return the current state; its tensors are not copied. Every rank must call this."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "named": {name: one.state_dict() for name, one in self.named.items()},
            "ranks": ranks.gather(generators()),
        }

    def load(self, step: int) -> dict[str, Any]:
        """Load a kept state; for sharded weights, this rank's part. Every rank must call this.

        Sharded tensors are loaded into a state of the same shape. An optimizer without any step has no moments yet, so
        it makes one step that changes nothing; its step count is then overwritten.
        """
        if not self.is_sharded:
            return self.store.load(step)
        with self.watch.quiet():
            kept = self.store.folder.document(step)["state"].get("optimizer")
            if isinstance(kept, dict) and kept.get("state") and not self.optimizer.state:
                self._make_moments()
            template = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            return self.store.load(step, template)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state; its tensors may be taken over. With a different number of ranks, new ones get rank 0's generators."""
        missing = [name for name in ("model", "optimizer", "ranks") if name not in state]
        if missing:
            raise SettingError(
                f"this is no kept state of a training: it has no {', '.join(missing)}",
                hint="only what a FlightRecorder kept can be restored",
            )
        with self.watch.quiet():
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self._waiting = dict(state.get("named", {}))
            for name, part in self.named.items():
                if name in self._waiting:  # an object that was not saved keeps its state
                    part.load_state_dict(self._waiting.pop(name))
        of_ranks, own = state["ranks"], ranks.rank()
        set_generators(of_ranks[own if own < len(of_ranks) else 0])

    def _make_moments(self) -> None:
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
            for parameter in group["params"]:
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
