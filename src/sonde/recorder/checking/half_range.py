"""Measures how large the outputs of modules are in float16, and their gradients.

One number that fills a place by design is left out: masks put -inf, or the lowest number, where
nothing is to be seen.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from sonde import ranks
from sonde.forensics.checks.overflow import HalfRange
from sonde.recorder.checking.bench import Bench
from sonde.recorder.checking.snapshot import undone


class _HalfWatch:
    """Notes the largest output of a module in float16, and the largest gradient of one."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.largest: float | None = None
        self.module = ""
        self.largest_gradient: float | None = None
        self._names = names

    def on_module(self, module: nn.Module, args: Any, output: Any) -> None:
        """Look at the output of a module."""
        del args
        for tensor in _tensors_in(output):
            if tensor.dtype is not torch.float16 or not tensor.numel():
                continue
            size = largest_of(tensor.detach())
            if self.largest is None or size > self.largest:
                self.largest = size
                self.module = self._names.get(id(module), type(module).__name__)
            if tensor.requires_grad:
                tensor.register_hook(self._on_gradient)

    def _on_gradient(self, gradient: Tensor) -> None:
        size = largest_of(gradient.detach())
        self.largest_gradient = max(self.largest_gradient or 0.0, size)


def half_range(bench: Bench, autocast_dtype: str | None) -> HalfRange:
    """Run the first batch and its backward pass, and look at what is in float16."""
    dtypes = {parameter.dtype for parameter in bench.reach.parameters()}
    is_float16 = autocast_dtype == "float16" or torch.float16 in dtypes
    if ranks.any_rank(not is_float16):
        return HalfRange(is_float16=False)
    watch = _HalfWatch(bench.names)
    handle = register_module_forward_hook(watch.on_module)
    try:
        with undone(bench.training, bench.reach):
            bench.gradients(bench.updates[0][:1])
    finally:
        handle.remove()
    return HalfRange(
        is_float16=True,
        largest=watch.largest,
        module=watch.module,
        largest_gradient=watch.largest_gradient,
        has_scaler=any(scaler.is_enabled() for scaler in bench.training.scalers()),
    )


def largest_of(tensor: Tensor) -> float:
    """Return the largest size of a number in a tensor; infinite if one is NaN or +inf. A lowest
    number that stands there more than once is a mask.
    """
    values = tensor.float()
    highest = float(values.max())
    lowest = float(values.min())
    if math.isnan(highest):
        return math.inf
    is_mask = int((values == lowest).sum()) > 1 or math.isinf(lowest)
    return highest if is_mask else max(highest, -lowest)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors_in(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _tensors_in(inner)
