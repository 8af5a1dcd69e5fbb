"""The named values of a step, in the form that user callbacks expect.

A value is selected by its name or by a handle, which is anything with a `name`. User functions get tensors, whatever
the task returned: `values[0].item()` works for a float too.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from sonde.errors import SettingError, did_you_mean


def names_of(tensors: object) -> tuple[str, ...]:
    """Return the names in a list of names and handles. A single one is treated as a list of one."""
    if isinstance(tensors, str) or not isinstance(tensors, Iterable):
        tensors = [tensors]
    return tuple(_name_of(one) for one in tensors)


def _name_of(tensor: object) -> str:
    name = tensor if isinstance(tensor, str) else getattr(tensor, "name", None)
    if not isinstance(name, str):
        raise SettingError(f"a tensor is asked for by its name, or by something that has one, not by {tensor!r}")
    return name


def pick(values: Mapping[str, Any], names: Iterable[str]) -> list[Tensor]:
    """Return the named values as detached tensors."""
    picked = []
    for name in names:
        if name not in values:
            raise SettingError(
                f"the task gives no value called {name!r}",
                cause=f"it gives {', '.join(sorted(values))}",
                hint=did_you_mean(name, values, "add it to the tensors of StepOutput"),
            )
        picked.append(torch.as_tensor(values[name]).detach())
    return picked


def as_number(value: Any) -> float:
    """Convert a number, tensor or array scalar to a float."""
    return float(value.item() if hasattr(value, "item") else value)


def numbers_in(values: object) -> dict[str, float]:
    """Return the results that are single numbers, by name. Lists, strings and other values are left out."""
    numbers: dict[str, float] = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if not isinstance(value, (str, bytes)):
            with suppress(TypeError, ValueError, RuntimeError):
                numbers[str(name)] = as_number(value)
    return numbers


def check_every(name: str, value: object) -> None:
    """Raise if a frequency is not a whole number of 1 or more."""
    if not isinstance(value, int) or value < 1:
        raise SettingError(f"{name} must be a whole number of 1 or more, not {value!r}")


def is_due(step: int, every: int) -> bool:
    """Return whether something is due after this step: after the first, and at every multiple of `every`."""
    return step == 1 or step % every == 0
