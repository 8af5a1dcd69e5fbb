"""A training state as one JSON document and a set of named tensors, and back, bit for bit.

A state is nested dicts, lists and tuples of numbers, strings, bytes, None and tensors: what `state_dict` methods return. Anything
else is refused when it is *saved*, with its place in the state, because what cannot be written cannot be resumed from. Tensors
that share their memory (tied embeddings) are written once and shared again.

    {"model": {"w": tensor}, "step": 3}   ->   {"model": {"w": {"@tensor": "model/w"}}, "step": 3}  and  {"model/w": tensor}
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from sonde.errors import DamagedFile, SettingError

_TENSOR: Final = "@tensor"
_TUPLE: Final = "@tuple"
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


def split_state(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The document and the tensors of a state. The tensors are detached, not copied."""
    tensors: dict[str, Tensor] = {}
    names: dict[tuple[object, ...], str] = {}
    document = _split(state, "", tensors, names)
    assert isinstance(document, dict)
    return document, tensors


def join_state(document: object, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `split_state` took apart."""
    if isinstance(document, list):
        return [join_state(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    if document.keys() == {_TENSOR}:
        name = document[_TENSOR]
        if name not in tensors:
            raise DamagedFile(f"the checkpoint lacks the tensor {name!r}")
        return tensors[name]
    if document.keys() == {_TUPLE}:
        return tuple(join_state(item, tensors) for item in document[_TUPLE])
    return {key: join_state(item, tensors) for key, item in document.items()}


def _split(value: Any, place: str, tensors: dict[str, Tensor], names: dict[tuple[object, ...], str]) -> Any:
    if isinstance(value, Tensor):
        return {_TENSOR: _keep(value, place, tensors, names)}
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        if value.keys() & {_TENSOR, _TUPLE}:
            raise SettingError(f"a key of the state is reserved: {place or 'the state'} has {_TENSOR} or {_TUPLE}")
        return {key: _split(item, f"{place}/{key}".lstrip("/"), tensors, names) for key, item in value.items()}
    if type(value) in (list, tuple):
        items = [_split(item, f"{place}/{index}", tensors, names) for index, item in enumerate(value)]
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
    while name in tensors:  # {"a": {"b": …}, "a/b": …} would meet
        number += 1
        name = f"{place}#{number}"
    names[same] = name
    tensors[name] = tensor
    return name
