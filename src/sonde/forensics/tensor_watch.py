"""Record the size of every module's output and gradient, and of every parameter, during one update.

    watch = Watch()
    with watch.on(model):
        …forward and backward…
    watch.modules()            # activations in order of execution, gradients in order of the backward pass, then parameters

Values are only read, so the update stays bitwise the same. The outputs of a module in all micro-batches of an update
count as one tensor, with a common norm. Repeated calls of a module within one forward pass are distinguished by `#2`,
`#3`, … Norms and maxima cover the finite elements; the others are counted.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from sonde.forensics.verdict import ModuleStatistics

ACTIVATION: Final = "activation"
GRADIENT: Final = "gradient"
PARAMETER: Final = "parameter"

_PARTS: Final = (ACTIVATION, GRADIENT, PARAMETER, GRADIENT)
"""What is recorded, in order: two of the modules, two of the parameters."""
MODEL: Final = "model"
"""The name of the model itself among its modules."""


@dataclass(slots=True)
class _Size:
    """The accumulated size of the elements of some tensors."""

    squares: float = 0.0
    max_abs: float = 0.0
    num_nonfinite: int = 0

    def add(self, tensor: Tensor) -> None:
        values = tensor.detach()
        if not values.numel():
            return
        low, high = (float(one) for one in torch.aminmax(values))
        if not math.isfinite(low) or not math.isfinite(high):
            is_finite = values.isfinite()
            self.num_nonfinite += int(values.numel() - is_finite.sum())
            values = values[is_finite]
            if not values.numel():
                return
            low, high = (float(one) for one in torch.aminmax(values))
        self.max_abs = max(self.max_abs, -low, high)
        self.squares += float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2

    def scaled(self, name: str, kind: str, factor: float) -> ModuleStatistics:
        return ModuleStatistics(
            module=name,
            kind=kind,
            norm=math.sqrt(self.squares) * factor,
            max_abs=self.max_abs * factor,
            num_nonfinite=self.num_nonfinite,
        )


class Watch:
    """Records one update of one model."""

    def __init__(self) -> None:
        self._sizes: defaultdict[tuple[int, str], _Size] = defaultdict(_Size)
        """By place in `_PARTS` and name."""
        self._num_calls: dict[str, int] = {}
        self._factors = [1.0, 1.0, 1.0, 1.0]

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Record what the model does in this block. Parameters are read before it, their gradients after it."""
        for name, parameter in model.named_parameters():
            self._sizes[2, name].add(parameter)
        handles = [model.register_forward_pre_hook(lambda *_: self._num_calls.clear())]
        handles += [
            module.register_forward_hook(partial(self._look, name or MODEL)) for name, module in model.named_modules()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self._sizes[3, name].add(parameter.grad)

    def scale(self, gradients: float, parameter_gradients: float) -> None:
        """Scale gradients by these factors, so that they are those of the mean loss before clipping."""
        self._factors = [1.0, gradients, 1.0, parameter_gradients]

    def modules(self) -> tuple[ModuleStatistics, ...]:
        """Return everything that was recorded."""
        ordered = sorted(self._sizes.items(), key=lambda one: one[0][0])
        return tuple(size.scaled(name, _PARTS[part], self._factors[part]) for (part, name), size in ordered)

    def _look(self, name: str, _module: nn.Module, _arguments: object, output: object) -> None:
        number = self._num_calls[name] = self._num_calls.get(name, 0) + 1
        call = name if number == 1 else f"{name}#{number}"
        for tensor in _tensors(output):
            self._sizes[0, call].add(tensor)
            if tensor.requires_grad:
                tensor.register_hook(partial(self._look_back, call))

    def _look_back(self, call: str, gradient: Tensor | None) -> None:
        if gradient is not None:  # outputs that DistributedDataParallel passes on and nothing uses have no gradient
            self._sizes[1, call].add(gradient)


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the floating-point tensors in a module's output."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
