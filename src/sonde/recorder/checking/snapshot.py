"""Everything that a step may change, remembered by value and put back: weights, the states of
optimizers, schedulers and scalers, buffers, gradients, generators, and what the step function
reaches.

`put_back` of recorder/put_back.py does this for forward passes; here whole updates are undone too.
The weights cost one copy in the memory of the host.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sonde.recorder.put_back import Remembered
from sonde.recorder.reach import reached
from sonde.recorder.training import Training
from sonde.train.determinism import generators, set_generators


class Reach:
    """The modules, optimizers and other objects with a state that a step function reaches."""

    def __init__(self, training: Training) -> None:
        found: dict[int, Any] = {}
        for part in (training.model, training.optimizer, *training.named.values()):
            found[id(part)] = part
        if training.step_function is not None:
            for value in reached(training.step_function):
                if hasattr(value, "state_dict") and not isinstance(value, type):
                    found[id(value)] = value
        self.roots = [part for part in found.values() if isinstance(part, nn.Module)]
        """The modules that it reaches by name, the model first."""
        self.optimizers = [
            part for part in found.values() if isinstance(part, torch.optim.Optimizer)
        ]
        self.others = [
            part
            for part in found.values()
            if not isinstance(part, nn.Module | torch.optim.Optimizer)
        ]

    def modules(self) -> list[nn.Module]:
        """Return all modules, each once."""
        found: dict[nn.Module, None] = {}
        for root in self.roots:
            found |= dict.fromkeys(root.modules())
        return list(found)

    def parameters(self) -> list[Tensor]:
        """Return all parameters, those that only optimizers hold included."""
        found: dict[Tensor, None] = {}
        for root in self.roots:
            found |= dict.fromkeys(root.parameters())
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                found |= dict.fromkeys(group["params"])
        return list(found)

    def names(self) -> dict[int, str]:
        """Return the names of modules by id."""
        found: dict[int, str] = {}
        for number, root in enumerate(self.roots):
            prefix = "" if number == 0 else f"{type(root).__name__}."
            for name, module in root.named_modules():
                found.setdefault(id(module), (prefix + name).rstrip(".") or type(module).__name__)
        return found


class Snapshot:
    """Everything at one moment."""

    def __init__(self, training: Training, reach: Reach, *, with_weights: bool) -> None:
        """Without weights, only forward and backward passes can be undone."""
        self._remembered = Remembered()
        function = training.step_function
        roots = [*reach.modules(), *reach.optimizers, *reach.others]
        self._remembered.remember(*(roots if function is None else [*roots, function]))
        for optimizer in reach.optimizers:
            self._remembered.remember_state(optimizer)
        self._gradients = [(parameter, parameter.grad) for parameter in reach.parameters()]
        self._gradient_copies = {
            parameter: gradient.detach().clone()
            for parameter, gradient in self._gradients
            if gradient is not None and with_weights
        }
        self.weights: dict[Tensor, Tensor] = {}
        """Copies of the weights, in the memory of the host."""
        if with_weights:
            for parameter in reach.parameters():
                self.weights[parameter] = parameter.detach().to("cpu", copy=True)
        self._generators = generators()

    def put_back(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for parameter, gradient in self._gradients:
                parameter.grad = gradient
                if parameter in self._gradient_copies and gradient is not None:
                    # a step may clear it in place
                    gradient.copy_(self._gradient_copies[parameter])
            for parameter, before in self.weights.items():
                parameter.copy_(before)
        self._remembered.put_back()
        set_generators(self._generators)


@contextmanager
def undone(training: Training, reach: Reach, *, with_weights: bool = False) -> Iterator[Snapshot]:
    """Undo within a block all that a step changes. Gradients are set aside."""
    snapshot = Snapshot(training, reach, with_weights=with_weights)
    for parameter in reach.parameters():
        parameter.grad = None
    try:
        with torch.enable_grad():
            yield snapshot
    finally:
        snapshot.put_back()
