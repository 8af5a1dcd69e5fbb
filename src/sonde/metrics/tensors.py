"""Tensors as metrics: copied on their device, and read together when somebody asks.

(Metal has no float64: its tensors are read at once, which waits.)
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from sonde.errors import SettingError

Scalar: TypeAlias = float | Tensor


def is_read_at_once(value: Tensor) -> bool:
    """Whether reading this tensor waits for nothing, or there is no other way."""
    return value.device.type in {"cpu", "mps"}


def scalar(value: Tensor) -> Scalar:
    """The number, if it is at hand; else a float64 copy on the device, without its graph and safe from later in-place changes."""
    if value.numel() != 1 or value.is_complex():
        raise SettingError(
            f"a metric is one real number, but got a tensor of shape {tuple(value.shape)} and type {value.dtype}",
            hint="reduce it first, e.g. value.mean()",
        )
    if is_read_at_once(value):
        return float(value.item())
    return value.detach().to(torch.float64, copy=True).reshape(())


def read_pairs(pairs: Sequence[tuple[Scalar, Scalar]]) -> list[tuple[float, float]]:
    """Values and weights as numbers; one transfer from each device."""
    by_device: dict[torch.device, dict[int, Tensor]] = {}
    for one in (scalar for pair in pairs for scalar in pair):
        if isinstance(one, Tensor):
            by_device.setdefault(one.device, {})[id(one)] = one
    numbers: dict[int, float] = {}
    for scalars in by_device.values():
        numbers |= zip(scalars, torch.stack(list(scalars.values())).tolist(), strict=True)
    return [(_number(value, numbers), _number(weight, numbers)) for value, weight in pairs]


def _number(scalar: Scalar, numbers: dict[int, float]) -> float:
    return numbers[id(scalar)] if isinstance(scalar, Tensor) else scalar
