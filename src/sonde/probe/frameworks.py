"""Which framework a value belongs to, and what the probe asks of a framework.

A value's type decides; nothing is imported to find out, and the module for a framework is loaded with its first tensor. One
thin file each: torch_tensors.py, mindspore_tensors.py, numpy_arrays.py. They differ in how to look at a tensor; the walk over
nested values, the names, the files and the records are shared.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast

from sonde.probe.moments import Leaf

Later: TypeAlias = Callable[[], None]
"""Fills in a leaf whose numbers are still being computed on a device; called when the records are written."""

_HOMES: Final = {
    ("torch", "Tensor"): "sonde.probe.torch_tensors",
    ("mindspore", "Tensor"): "sonde.probe.mindspore_tensors",
    ("numpy", "ndarray"): "sonde.probe.numpy_arrays",
}


class Framework(Protocol):
    """What a framework's file offers. The modules themselves are the objects."""

    NAME: str
    """As in debug.json: "pytorch" or "mindspore"; empty for numpy, which belongs to neither."""
    SUFFIX: str
    """Of the files of full tensors."""

    def describe(self, tensor: Any, hashing: str) -> tuple[Leaf, Later | None]:
        """The leaf of a tensor as it is now, whatever happens to it later."""

    def on_gradient(self, tensor: Any, notify: Callable[[Any], None]) -> Any:
        """Call `notify` with each gradient of the tensor; a handle with `remove()`, or None when it has none."""

    def backward_id(self) -> int:
        """A number that tells one backward pass from another."""

    def write(self, tensor: Any, path: Path) -> bool:
        """Write the whole tensor to a file; False when it has no values to write."""


def framework_of(kind: type) -> Framework | None:
    """The framework whose tensor type `kind` is or derives from; None for every other type. Ask once per type."""
    for base in kind.__mro__:
        home = _HOMES.get((base.__module__.partition(".")[0], base.__name__))
        if home is not None:
            return cast("Framework", importlib.import_module(home))
    return None
