"""MindSpore tensors for the probe in eager mode: copied to numpy, measured there, and saved as
.npy.

As in msprobe, a leaf has no requires_grad, and bfloat16 is hashed and written as float32.
MindSpore's CPU build has no vector norm and no bfloat16 reductions, so neither is used.
"""

import importlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sonde.probe import numpy_arrays
from sonde.probe.walk import Later, Leaf, Notify

NAME = "mindspore"
SUFFIX = "npy"

mindspore: Final[Any] = importlib.import_module("mindspore")  # has no type hints
_BFLOAT16: Final = mindspore.bfloat16


def describe(tensor: Any, hashing: str, laters: list[Later]) -> Leaf:
    """Return the leaf for the current value of a tensor."""
    del laters
    leaf = numpy_arrays.new_leaf("mindspore.Tensor", str(tensor.dtype), tensor.shape)
    numpy_arrays.measure_into(leaf, _as_array(tensor), hashing)
    return leaf


def on_gradient(tensor: Any, notify: Notify) -> Any:
    """Call `notify` with every gradient of the tensor.

    MindSpore does not say in advance whether there will be one, nor does it number backward passes.
    """
    is_float = tensor.dtype in (mindspore.float16, _BFLOAT16, mindspore.float32, mindspore.float64)
    return tensor.register_hook(lambda gradient: notify(gradient, -1)) if is_float else None


def write(tensor: Any, path: Path) -> bool:
    """Write the tensor as .npy. Return False if it has no values."""
    return numpy_arrays.write(_as_array(tensor), path)


def _as_array(tensor: Any) -> npt.NDArray[Any]:
    if tensor.dtype == _BFLOAT16:
        tensor = tensor.astype(mindspore.float32)
    array: npt.NDArray[Any] = np.asarray(tensor.asnumpy())
    return array
