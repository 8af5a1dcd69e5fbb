"""Numpy arrays for the probe: any dtype, any strides, saved as .npy. Object arrays are described but never written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.probe.blocks import measure, new_hash
from sonde.probe.moments import Leaf, new_leaf, write_bool_statistics, write_statistics
from sonde.probe.walk import Later

NAME = ""
SUFFIX = "npy"


def describe(array: npt.NDArray[Any], hashing: str, laters: list[Later]) -> Leaf:
    """Return the leaf for the current value of an array."""
    del laters
    leaf = new_leaf("numpy.ndarray", str(array.dtype), array.shape)
    if array.dtype.kind in "biufc":
        measure_into(leaf, array, hashing)
    return leaf


def measure_into(leaf: Leaf, array: npt.NDArray[Any], hashing: str) -> None:
    """Fill in the statistics and the hash of a numeric array."""
    content = new_hash(hashing)
    moments = measure(array, content)
    if array.dtype.kind == "b":
        write_bool_statistics(leaf, moments)
    else:
        write_statistics(leaf, moments, single=array.dtype.kind in "fc" and array.real.itemsize <= 4)
    if content is not None:
        content.write(leaf)


def on_gradient(array: npt.NDArray[Any], notify: Callable[[Any], None]) -> Any:
    """Return None: arrays have no gradients."""
    del array, notify


def backward_id() -> int:
    """Return -1: arrays take no part in a backward pass."""
    return -1


def write(array: npt.NDArray[Any], path: Path) -> bool:
    """Write the array as .npy. Return False if it has no values, or values that only pickle could write."""
    if not array.size or array.dtype.hasobject:
        return False
    np.save(path, array, allow_pickle=False)
    return True


def read(path: Path) -> Any:
    """Load an array from a file."""
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise OSError(f"{path} is no array file: {error}") from error
