"""Everything that exact resume needs, gathered from where it lives, as one nested dict; and put back.

    model, optimizer, scale, plateau       what is trained
    data                                   the position: a few integers
    counters, stop, evaluation             updates, epochs, seconds; best value and patience; the last results
    metrics, callbacks                     what they remember
    ranks                                  the generators of python, numpy and torch on each rank

The same content on every rank but `ranks`, which is gathered; the trainer's rank 0 saves it. Of a model under FSDP2 each rank
has and saves its own part.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from sonde import ranks
from sonde.checkpoint.sharded import is_sharded
from sonde.errors import SettingError
from sonde.metrics import stack as metrics
from sonde.train.stopping import StopState


class Stateful(Protocol):
    """Anything that can be saved."""

    def state_dict(self) -> dict[str, Any]:
        """As plain data and tensors."""

    def load_state_dict(self, state: Any) -> object:
        """Back from it."""


@final
@dataclass(slots=True)
class Counters:
    """How far a run has come."""

    num_updates: int = 0
    """Updates made: a checkpoint after n of them says n."""
    num_epochs: int = 0
    """Epochs completed."""
    num_skipped: int = 0
    """Updates that did not move the weights."""
    seconds: float = 0.0
    """Time spent training, over all starts."""


@final
@dataclass(slots=True)
class LastEvaluation:
    """What the last evaluation found, so that a resumed run neither repeats nor forgets it."""

    step: int = -1
    """After how many updates; -1 before the first."""
    results: dict[str, float] = field(default_factory=dict)
    """Its values by name."""


@final
class StatesByName:
    """Several stateful objects as one; told apart by class and by number among equals."""

    def __init__(self, objects: Sequence[Stateful]) -> None:
        self._named: dict[str, Stateful] = {}
        for one in objects:
            name = type(one).__name__
            number = sum(other.partition("#")[0] == name for other in self._named)
            self._named[f"{name}#{number}"] = one

    def state_dict(self) -> dict[str, Any]:
        """The states, by name."""
        return {name: one.state_dict() for name, one in self._named.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give each its own back; one that was not there before keeps what it has."""
        for name, one in self._named.items():
            if name in state:
                one.load_state_dict(state[name])


@final
class TrainerState:
    """The state of one training, spread over its parts."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, parts: Mapping[str, Stateful]) -> None:
        """`parts` are what else must be saved, by name."""
        self.counters = Counters()
        self.stop = StopState()
        self.evaluation = LastEvaluation()
        self._model = model
        self._optimizer = optimizer
        self._plain: dict[str, Any] = {"counters": self.counters, "stop": self.stop, "evaluation": self.evaluation}
        # Means that a checkpoint falls into the middle of go on after it.
        self._parts: dict[str, Stateful] = {"metrics": metrics, **parts}

    def collect(self) -> dict[str, Any]:
        """The whole state. Every rank must call it."""
        model, optimizer = _model_state(self._model, self._optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            **{name: asdict(part) for name, part in self._plain.items()},
            **{name: part.state_dict() for name, part in self._parts.items()},
            "ranks": ranks.gather(generators()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put everything back. With another number of ranks, new ones take rank 0's generators."""
        missing = [name for name in ("model", "optimizer", "ranks") if name not in state]
        if missing:
            raise SettingError(
                f"this checkpoint is no state of sonde's trainer: it has no {', '.join(missing)}",
                cause="a loop of one's own saved what it chose to",
                hint="watch the loop with a FlightRecorder: what it keeps can be replayed (docs/any-loop.md)",
            )
        _load_model_state(self._model, self._optimizer, state["model"], state["optimizer"])
        for plain, values in ((part, state.get(name, {})) for name, part in self._plain.items()):
            for name, value in values.items():
                setattr(plain, name, value)
        for name, part in self._parts.items():
            if name in state:  # what a checkpoint does not know keeps what it has
                part.load_state_dict(state[name])
        of_ranks: Sequence[dict[str, Any]] = state["ranks"]
        own = ranks.rank()
        set_generators(of_ranks[own if own < len(of_ranks) else 0])


def _model_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    if isinstance(model, FSDPModule):
        return get_state_dict(model, optimizer)
    return _unwrapped(model).state_dict(), optimizer.state_dict()


def _load_model_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, weights: dict[str, Any], moments: dict[str, Any]
) -> None:
    if isinstance(model, FSDPModule):
        whole = StateDictOptions(full_state_dict=not is_sharded(weights))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=whole)
        return
    _unwrapped(model).load_state_dict(weights)
    optimizer.load_state_dict(moments)


def _unwrapped(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def generators() -> dict[str, Any]:
    """The generators of python, numpy and torch of this process, as plain data."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002  the global one, which users' code draws from
    assert isinstance(numpy, dict)
    state = dict(numpy["state"])
    return {
        "python": list(random.getstate()),
        "numpy": {**numpy, "state": {**state, "key": state["key"].tobytes()}},
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def set_generators(state: Mapping[str, Any]) -> None:
    """Put them back."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    numpy = state["numpy"]
    key = np.frombuffer(numpy["state"]["key"], dtype=np.uint32)
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})  # noqa: NPY002  the user's own generator, put back
    torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
