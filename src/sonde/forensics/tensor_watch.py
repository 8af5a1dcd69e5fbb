"""Record the size of every module's output and gradient, and of every parameter, during one update.

    watch = Watch()
    with watch.on(model):
        …forward and backward…
    watch.modules()            # activations in order of execution, gradients in order of the backward pass, then parameters

Tensors are found and measured as by the probe. Values are only read, so the update stays bitwise the same. The outputs
of a module in all micro-batches of an update count as one tensor, with a common norm. Repeated calls of a module within
one forward pass are distinguished by `#2`, `#3`, … Norms and maxima cover the finite elements; the others are counted.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from torch import Tensor, nn

from sonde.forensics.verdict import ModuleStatistics
from sonde.probe import torch_tensors
from sonde.probe.walk import Framework, Indexes, Later, Leaf, walk

ACTIVATION: Final = "activation"
GRADIENT: Final = "gradient"
PARAMETER: Final = "parameter"

_PARTS: Final = (ACTIVATION, GRADIENT, PARAMETER, GRADIENT)
"""What is recorded, in order: two of the modules, two of the parameters."""
MODEL: Final = "model"
"""The name of the model itself among its modules."""


class Watch:
    """Records one update of one model."""

    def __init__(self) -> None:
        self._leaves: defaultdict[tuple[int, str], list[Leaf]] = defaultdict(list)
        """By place in `_PARTS` and name."""
        self._laters: list[Later] = []
        self._num_calls: dict[str, int] = {}
        self._factors = [1.0, 1.0, 1.0, 1.0]

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Record what the model does in this block. Parameters are read before it, their gradients after it."""
        for name, parameter in model.named_parameters():
            self._see(2, name, parameter)
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
            self._see(3, name, parameter.grad)

    def scale(self, gradients: float, parameter_gradients: float) -> None:
        """Scale gradients by these factors, so that they are those of the mean loss before clipping."""
        self._factors = [1.0, gradients, 1.0, parameter_gradients]

    def modules(self) -> tuple[ModuleStatistics, ...]:
        """Return everything that was recorded."""
        while self._laters:
            self._laters.pop()()
        ordered = sorted(self._leaves.items(), key=lambda one: one[0][0])
        return tuple(_statistics(name, _PARTS[part], leaves, self._factors[part]) for (part, name), leaves in ordered)

    def _look(self, name: str, _module: nn.Module, _arguments: object, output: object) -> None:
        number = self._num_calls[name] = self._num_calls.get(name, 0) + 1
        walk(output, partial(self._look_at, name if number == 1 else f"{name}#{number}"))

    def _look_at(self, call: str, tensor: Any, _: Indexes, framework: Framework) -> Leaf:
        if framework.NAME == torch_tensors.NAME and tensor.is_floating_point():
            self._see(0, call, tensor)
            torch_tensors.on_gradient(tensor, partial(self._see, 1, call))
        return {}

    def _see(self, part: int, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:  # what nothing uses has no gradient, as some outputs of DistributedDataParallel
            self._leaves[part, name].append(torch_tensors.describe(tensor, "", self._laters))


def _statistics(name: str, kind: str, leaves: Sequence[Leaf], factor: float) -> ModuleStatistics:
    """Return the statistics of tensors that count as one, times a factor."""
    known = [one for one in (leaf.get("finite", leaf) for leaf in leaves) if one["Norm"] is not None]
    return ModuleStatistics(
        module=name,
        kind=kind,
        norm=math.hypot(*(one["Norm"] for one in known)) * factor,
        max_abs=max((max(-one["Min"], one["Max"]) for one in known), default=0.0) * factor,
        num_nonfinite=sum(leaf.get("num_nan", 0) + leaf.get("num_inf", 0) for leaf in leaves),
    )
