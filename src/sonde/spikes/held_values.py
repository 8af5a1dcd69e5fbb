"""Values of a training loop, held without being read, and read later as plain data.

Values are copied, because their owner may overwrite them in the next step; a CPU tensor is copied
as an array, which is cheaper than another tensor. No tensor is moved or waited for until its value
is released.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sonde.records.values import is_tensor_type

_MAX_READ: Final = 32
"""Arrays and CPU tensors with at most this many values are read at once: plain numbers are cheaper
than an array.
"""


def is_tensor(value: object) -> bool:
    """Return whether this is a torch tensor, judging by its type without importing torch."""
    kind = type(value)
    return kind.__module__ == "torch" or (
        kind.__module__ not in ("builtins", "numpy") and is_tensor_type(kind)
    )


def hold(value: Any) -> Any:
    """Hold a value such that its owner may change or reuse it: few numbers as a list, more as an
    array, tensors on a device as such.
    """
    kind = type(value)
    if value is None or kind is float or kind is int or kind is tuple:
        return value
    if kind is list:
        return value.copy()
    if is_tensor(value):
        if not value.is_cpu:
            return value.detach().clone()
        value = value.tolist() if value.numel() <= _MAX_READ else as_array(value)
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= _MAX_READ else value.copy()
    return value


def as_array(tensor: Any) -> NDArray[Any]:
    """Return the values of a CPU tensor as an array, without a copy if numpy supports the type."""
    try:
        array: NDArray[Any] = tensor.numpy()
    except (TypeError, RuntimeError):  # bfloat16, which numpy does not support; or part of a graph
        array = tensor.detach().float().numpy()
    return array


def released(held: Any) -> Any:
    """Return a held value as plain Python data. Waits for the device of a tensor.

    A function is called for its value, so that expensive values are computed only when needed.
    """
    if callable(held):
        held = held()
    if isinstance(held, (list, tuple)):
        return [part.tolist() if hasattr(part, "tolist") else part for part in held]
    return held.tolist() if hasattr(held, "tolist") else held


def are_few(held: Any, kind: type) -> bool:
    """Return whether these are a few plain numbers of one type."""
    return type(held) is list and 0 < len(held) <= _MAX_READ and set(map(type, held)) == {kind}


def version_of(value: Any) -> int:
    """Return how often a tensor was changed in place; 0 for other values."""
    try:
        return int(getattr(value, "_version", 0))
    except RuntimeError:  # inference-mode tensors have no version counter
        return -1
