"""Convert a training state to one JSON document and a set of named tensors, and back, bit for bit.

A state consists of nested dicts, lists and tuples of numbers, strings, bytes, None and tensors: what `state_dict`
methods return. Anything else is refused on *saving*, with its place in the state, because it could not be restored.
Tensors that share memory (tied embeddings) are written once and shared again on loading. Sharded tensors are kept
separately.

    {"model": {"w": tensor}, "step": 3}   ->   {"model": {"w": {"@tensor": "model/w"}}, "step": 3}  and  {"model/w": tensor}
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from sonde.errors import DamagedFile, SettingError

_TENSOR: Final = "@tensor"
_SHARDED: Final = "@sharded"
_TUPLE: Final = "@tuple"
_RESERVED: Final = frozenset({_TENSOR, _SHARDED, _TUPLE})
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


def split_state(state: Mapping[str, Any]) -> "Parts":
    """Return the document and the tensors of a state. The tensors are detached, not copied."""
    parts = Parts({}, {}, {})
    document = _split(state, "", parts, {})
    parts.document.update(document)
    return parts


def join_state(document: object, tensors: Mapping[str, Tensor], sharded: Mapping[str, Tensor] | None = None) -> Any:
    """Rebuild the state that `split_state` took apart."""
    if isinstance(document, list):
        return [join_state(item, tensors, sharded) for item in document]
    if not isinstance(document, dict):
        return document
    if document.keys() == {_TENSOR}:
        return _find(document[_TENSOR], tensors)
    if document.keys() == {_SHARDED}:
        return _find(document[_SHARDED], sharded or {})
    if document.keys() == {_TUPLE}:
        return tuple(join_state(item, tensors, sharded) for item in document[_TUPLE])
    return {key: join_state(item, tensors, sharded) for key, item in document.items()}


class Parts(NamedTuple):
    """The parts of a split state."""

    document: dict[str, Any]
    tensors: dict[str, Tensor]
    sharded: dict[str, Tensor]
    """The tensors that are sharded over ranks."""


def _find(name: object, tensors: Mapping[str, Tensor]) -> Tensor:
    if not isinstance(name, str) or name not in tensors:
        raise DamagedFile(f"the checkpoint lacks the tensor {name!r}")
    return tensors[name]


def _split(value: Any, place: str, parts: Parts, names: dict[tuple[object, ...], str]) -> Any:
    if isinstance(value, DTensor):
        parts.sharded[place] = value.detach()
        return {_SHARDED: place}
    if isinstance(value, Tensor):
        return {_TENSOR: _keep(value, place, parts.tensors, names)}
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        if value.keys() & _RESERVED:
            raise SettingError(
                f"a key of the state is reserved: {place or 'the state'} has one of {', '.join(sorted(_RESERVED))}"
            )
        return {key: _split(item, f"{place}/{key}".lstrip("/"), parts, names) for key, item in value.items()}
    if type(value) in (list, tuple):
        items = [_split(item, f"{place}/{index}", parts, names) for index, item in enumerate(value)]
        return {_TUPLE: items} if type(value) is tuple else items
    raise SettingError(
        f"{place} is a {type(value).__name__}, which a checkpoint cannot hold",
        cause="a checkpoint is plain data and tensors; objects would have to be pickled",
        hint="return dicts, lists, numbers, strings, bytes and tensors from state_dict()",
    )


def _keep(tensor: Tensor, place: str, tensors: dict[str, Tensor], names: dict[tuple[object, ...], str]) -> str:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise SettingError(
            f"{place} is a tensor of a kind that a checkpoint cannot hold", cause=f"layout {tensor.layout}"
        )
    tensor = tensor.detach()
    same = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
    if tensor.numel() and same in names:
        return names[same]
    name, number = place, 1
    while name in tensors:  # {"a": {"b": …}, "a/b": …} would collide
        number += 1
        name = f"{place}#{number}"
    names[same] = name
    tensors[name] = tensor
    return name
