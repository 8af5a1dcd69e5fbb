"""Keeping what a training step hands over, without reading it: a tensor stays a tensor until a spike is written.

A small value is copied, since its owner may write over it in the next step; a CPU tensor as an array, which costs less than another
tensor. A large tensor (losses of every token) is kept as
it is, with the count of in-place changes that torch keeps for it: if that has moved on when the value is wanted, the value is
gone and is left out, never mistaken for another. No tensor is moved or waited for here.
"""

from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.log.device import is_tensor_type

_MAX_READ: Final = 4
"""Values of a CPU tensor that are read at once."""
_MAX_COPIED: Final = 4096
"""Values that are copied at once: 64 samples, or four thousand."""


def is_tensor(value: object) -> bool:
    """Is this a torch tensor? Known by its type: torch is not imported for it."""
    kind = type(value)
    return kind.__module__ == "torch" or (kind.__module__ != "builtins" and is_tensor_type(kind))


def hold(value: Any) -> Any:
    """The value, such that its owner may do with it what he likes."""
    kind = type(value)
    if value is None or kind is float or kind is int or kind is tuple:
        return value
    if kind is list:
        return value.copy()
    if isinstance(value, np.ndarray):
        return value.copy() if value.size <= _MAX_COPIED else value
    if is_tensor(value):
        size = value.numel()
        if value.is_cpu and size <= _MAX_READ:
            return value.tolist()
        detached = value.detach() if value.requires_grad else value
        if size > _MAX_COPIED:
            return HeldTensor(detached)
        return as_array(detached).copy() if value.is_cpu else detached.clone()
    return value


def as_array(values: Any) -> NDArray[Any]:
    """Numbers of a CPU tensor, without a copy where numpy knows their kind; or of anything else."""
    if not is_tensor(values):
        return np.asarray(values)
    try:
        array: NDArray[Any] = values.numpy()
    except (TypeError, RuntimeError):  # bfloat16, which numpy does not know; or part of a graph
        array = values.detach().float().numpy()
    return array


def released(held: Any) -> Any:
    """A held value as plain Python data; None when it was written over. Waits for the device of a tensor.

    A function stands for the value that it returns: what costs something to make is made when it is wanted.
    """
    if callable(held):
        held = held()
    if isinstance(held, HeldTensor):
        held = held.tensor if held.is_unchanged() else None
    if is_tensor(held):
        return held.tolist()
    if isinstance(held, (np.ndarray, np.generic)):
        return held.tolist()
    if isinstance(held, (list, tuple)):
        return [released(one) if is_tensor(one) or isinstance(one, (np.ndarray, np.generic)) else one for one in held]
    return held


@final
class HeldTensor:
    """A tensor that was not copied, and how often it had been changed in place by then."""

    __slots__ = ("_version", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self._version = _version(tensor)

    def is_unchanged(self) -> bool:
        """Has nobody written to it since?"""
        return _version(self.tensor) == self._version


def _version(tensor: Any) -> int:
    try:
        return int(tensor._version)
    except RuntimeError:  # tensors of inference mode keep no count
        return -1
