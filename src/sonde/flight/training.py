"""One training: its parts, its state as one nested dict, and back; for a replay, where its states come from.

The state is model, optimiser, named objects, and the generators of every rank. Those of model and optimiser are taken as they come: whole, or as this rank's
parts (FSDP2, tensor parallel). Taking them changes nothing.
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
    """What a recorder rides along with."""

    run: Run
    settings: FlightSettings
    model: nn.Module
    optimizer: torch.optim.Optimizer
    named: dict[str, Stateful]
    """Everything else that has a state."""
    device_type: str
    decode: Callable[[list[int]], str] | None
    """Makes text of tokens."""
    store: CheckpointStore
    """Where states are kept."""
    again: Again
    """Makes forwards again."""
    watch: LoopWatch
    """Listens."""
    is_sharded: bool = False
    """Does every rank hold only a part of the weights?"""
    _waiting: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_sharded = any(isinstance(one, DTensor) for one in self.model.parameters())

    def add(self, name: str, part: StatefulT) -> StatefulT:
        """Something more that belongs to it; what was restored before it came is given to it."""
        if name in self._waiting:
            part.load_state_dict(self._waiting.pop(name))
        self.named[name] = part
        return part

    def steps(self) -> list[int]:
        """After how many updates each kept state is."""
        return self.store.folder.steps()

    def is_good(self, step: int) -> bool:
        """Does every byte of a kept state verify?"""
        return not self.store.folder.problems(step)

    def collect(self) -> dict[str, Any]:
        """The state of now; tensors are its own, not copied. Every rank must call it."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "named": {name: one.state_dict() for name, one in self.named.items()},
            "ranks": ranks.gather(generators()),
        }

    def load(self, step: int) -> dict[str, Any]:
        """A kept state; of sharded weights, this rank's part. Every rank must call it.

        Sharded tensors are loaded into a state of the same shape. An optimiser that has made no step yet has no moments: it makes one that moves nothing.
        What it counts is then loaded over.
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
        """Put everything back; the state's tensors may be taken over. With another number of ranks, new ones take rank 0's generators."""
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
            for name in [one for one in self.named if one in self._waiting]:  # what was not kept keeps what it has
                self.named[name].load_state_dict(self._waiting.pop(name))
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
