"""Walk any nested value: every tensor is visited, everything else becomes a JSON leaf.

    dict, dataclass, namedtuple    object      list, tuple    array
    None, bool, int, float, str, numpy scalars, torch.Size    {"type": "int", "value": 3}
    anything else                                             {"type": "set", "value": "{1, 2}"}
        (its repr)

Never raises: a cycle, nesting deeper than MAX_DEPTH, or an object that fails while being read
becomes a leaf with an "error". Keys that are not strings are converted to strings; if two would
collide, the later one is prefixed with its type (`int:1`).

The framework is recognized from a value's type without importing anything; its module is loaded
with its first tensor. There is one thin module per framework: torch_tensors.py,
mindspore_tensors.py, numpy_arrays.py. They differ only in how they read a tensor.
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast

import numpy as np

Leaf: TypeAlias = dict[str, Any]
"""One saved tensor or scalar, as it appears in debug.json."""
Tree: TypeAlias = Any
"""Leaves nested in dicts and lists."""
Indexes: TypeAlias = tuple[str, ...]
"""The path to a leaf: keys and positions."""
Later: TypeAlias = Callable[[], None]
"""Fills in a leaf whose numbers a device is still computing; called when the records are
written.
"""
Notify: TypeAlias = Callable[[Any, int], None]
"""Takes a gradient and a number that identifies the backward pass, -1 if it is unknown."""
Visit: TypeAlias = Callable[[Any, Indexes, "Framework"], Leaf]

MAX_DEPTH: Final = 48
"""Maximum nesting of a saved value. Records nest at most 64 levels deep (records/values.py)."""
_MAX_TEXT: Final = 100_000
_MAX_REPR: Final = 500
_MAX_INT_BITS: Final = 4096

_HOMES: Final = {
    ("torch", "Tensor"): "sonde.probe.torch_tensors",
    ("mindspore", "Tensor"): "sonde.probe.mindspore_tensors",
    ("numpy", "ndarray"): "sonde.probe.numpy_arrays",
}

_PLAIN: Final = frozenset({type(None), bool, int, float, str})


class Framework(Protocol):
    """What each framework's module provides. The modules themselves are the objects."""

    NAME: str
    """The name in debug.json: "pytorch" or "mindspore"; empty for numpy."""
    SUFFIX: str
    """File suffix of full tensors."""

    def describe(self, tensor: Any, hashing: str, laters: list[Later]) -> Leaf:
        """Return the leaf for the current value of a tensor; functions that fill in the rest are
        added to `laters`.
        """

    def on_gradient(self, tensor: Any, notify: Notify) -> Any:
        """Call `notify` with each gradient; return a handle with `remove()`, or None if the tensor
        has no gradient.
        """

    def write(self, tensor: Any, path: Path) -> bool:
        """Write the whole tensor to a file. Return False if it has no values to write."""


@functools.cache
def framework_of(kind: type) -> Framework | None:
    """Return the framework whose tensor type `kind` is or derives from, or None."""
    names = ((base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__)
    home = next((_HOMES[name] for name in names if name in _HOMES), None)
    return None if home is None else cast("Framework", importlib.import_module(home))


def is_leaf(tree: Tree) -> bool:
    """Return whether this node is a leaf. (A user's dict may have a key "type", but its value is
    then a node.)
    """
    return isinstance(tree, dict) and isinstance(tree.get("type"), str)


def leaves(tree: Tree, indexes: Indexes = ()) -> list[tuple[Indexes, Leaf | None]]:
    """Return every leaf with its path, in order; None stands for a gradient that did not arrive."""
    if tree is None or is_leaf(tree):
        return [(indexes, tree)]
    children: Iterable[tuple[object, Tree]] = ()
    if isinstance(tree, dict):
        children = tree.items()
    elif isinstance(tree, list):
        children = enumerate(tree)
    found: list[tuple[Indexes, Leaf | None]] = []
    for key, child in children:
        found += leaves(child, (*indexes, str(key)))
    return found


def walk(value: Any, visit: Visit) -> Tree:
    """Return the tree of `value`, with the result of `visit` in place of each tensor."""
    return _node(value, (), visit, [])


def _node(value: Any, indexes: Indexes, visit: Visit, around: list[int]) -> Tree:
    if type(value) in _PLAIN:
        return _scalar(value)
    framework = framework_of(type(value))  # type: ignore[arg-type]  # every type is hashable
    try:
        if framework is not None:
            return visit(value, indexes, framework)
        items = _items(value)
        if items is None:
            return _other(value)
        if id(value) in around:
            return _failed(value, "a cycle: it contains itself")
        if len(around) >= MAX_DEPTH:
            return _failed(value, f"nested deeper than {MAX_DEPTH} levels")
        around.append(id(value))
        try:
            nodes = {
                key: _node(child, (*indexes, key), visit, around) for key, child in items.items()
            }
        finally:
            around.pop()
    except Exception as error:  # noqa: BLE001
        # foreign __iter__, __repr__ and properties may raise anything
        if framework is None:
            why = f"{type(error).__name__} while reading it"
        else:
            why = f"{type(error).__name__}: {error}"
        return _failed(value, why[:_MAX_REPR])
    if isinstance(value, list | tuple) and not _is_namedtuple(value):
        return list(nodes.values())
    return nodes


def _items(value: Any) -> dict[str, Any] | None:
    """Return the items of a container under string keys, or None if `value` is not a container."""
    if isinstance(value, Mapping):
        return _string_keys(value)
    if isinstance(value, list | tuple):
        if _is_namedtuple(value):
            named: Any = value
            return {name: getattr(value, name) for name in named._fields}
        if _is_shape(value):
            return None
        return {str(position): child for position, child in enumerate(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def _string_keys(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    items: dict[str, Any] = {key: None for key in mapping if isinstance(key, str)}
    for key, child in mapping.items():
        name = key if isinstance(key, str) else str(key)
        while not isinstance(key, str) and name in items:
            name = f"{type(key).__name__}:{name}"
        items[name] = child
    return items


def _is_namedtuple(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_shape(value: object) -> bool:
    return type(value).__module__ == "torch" and type(value).__name__ == "Size"


def _scalar(value: object) -> Leaf:
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return {
            "type": "str",
            "value": value[:_MAX_REPR],
            "error": f"cut: it has {len(value)} characters",
        }
    if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
        return {"type": "int", "value": None, "error": f"cut: it has {value.bit_length()} bits"}
    return {"type": type(value).__name__, "value": value}


def _other(value: Any) -> Leaf:
    if _is_shape(value):
        return {"type": "torch.Size", "value": list(value)}
    if isinstance(value, np.generic):
        item = value.item()
        if type(item) in _PLAIN:
            return {"type": type(value).__name__, "value": item}
    if isinstance(value, complex):
        return {"type": "complex", "value": [value.real, value.imag]}
    return {"type": _type_name(value), "value": repr(value)[:_MAX_REPR]}


def _failed(value: object, why: str) -> Leaf:
    return {"type": _type_name(value), "value": None, "error": why}


def _type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
