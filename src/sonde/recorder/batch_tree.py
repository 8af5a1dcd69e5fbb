"""Convert any batch to a plain tree and a list of tensors, and back; and find its rows, tokens and
names. Nothing is pickled.

A batch may be a tensor, a tuple, a dict, a dataclass or a user-defined object. The tree is JSON and
says where each tensor belongs. Rebuilding a batch needs another batch of the same script as a
template for its types and devices, so no type is ever named in a file.

    {"d": [["input_ids", {"t": 0}], ["labels", {"t": 1}]]}
"""

import copy
import hashlib
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sonde.data.skip_list import CONTENT
from sonde.errors import DamagedFile
from sonde.recorder.reach import members_of, slots_of

TRAIN: Final = "train"
"""The dataset name of samples that have a number but no dataset."""
_TOKEN_KEYS: Final = ("input_ids", "tokens", "input", "inputs", "x", "source", "target", "labels")
_MASK: Final = "attention_mask"
_MAX_DEPTH: Final = 16
_MAX_PARTS: Final = 50_000
"""A batch of more parts is not kept: one that holds its whole dataset would be walked through at
every step.
"""
_WHOLE: Final = frozenset(
    [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
)
_SHALLOW: Final = 2
"""Containers below this depth are counted, and remembered as long as they are read. Others cost
nothing more: they are those of ordinary batches.
"""
_SMALL: Final = 64
_ROWS: Final = (list, tuple)
_DTYPES: Final = _WHOLE | {torch.float32, torch.float64, torch.bfloat16, torch.float16}
_PLAIN: Final = (str, int, float, bool, type(None))
_NO_DATA: Final = (type, FunctionType, partial, nn.Module, Iterator)
"""Objects whose attributes are no part of a batch."""


class _CannotBeKeptError(Exception):
    """Ends the reading of a batch that has no end, or far too many parts."""


@dataclass(slots=True)
class BatchTree:
    """A batch taken apart."""

    plain: dict[str, Any] = field(default_factory=dict)
    """Where each tensor belongs, as plain data."""
    tensors: list[Tensor] = field(default_factory=list)
    """Its tensors, not copied."""
    problem: str = ""
    """What of it cannot be kept; empty if all of it can."""
    around: set[int] | None = None
    """The deep containers around the part that is being read, by their ids."""
    num_parts: int = 0
    """How many parts were read, without those of small containers that are not deep."""


def flatten(batch: Any) -> BatchTree:
    """Take a batch apart. Never raises: what cannot be kept is said in `problem`. No code of the
    batch's own class is run, because it may draw random numbers, or lose what is read.
    """
    if type(batch) is Tensor and is_plain(batch):
        return BatchTree({"t": 0}, [batch])  # the common case, at a third of the cost
    tree = BatchTree()
    try:
        tree.plain = _flatten(batch, tree, 0)
    except _CannotBeKeptError as reason:
        return BatchTree({"x": type(batch).__name__}, problem=str(reason))
    return tree


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is a block of ordinary numbers in the memory of the host."""
    is_strided = tensor.is_cpu and tensor.layout is torch.strided
    return is_strided and tensor.dtype in _DTYPES and not tensor.is_nested


def _flatten(value: Any, tree: BatchTree, depth: int) -> dict[str, Any]:
    if isinstance(value, Tensor):
        return _flatten_tensor(value, tree)
    if type(value) in _PLAIN:
        return {"v": value}
    if isinstance(value, np.ndarray):
        return _flatten_array(value, tree)
    if depth < _MAX_DEPTH:
        try:
            found = _flatten_container(value, tree, depth)
        except _CannotBeKeptError:
            raise
        except Exception as error:  # noqa: BLE001  a batch of a class of the user's may raise anything
            tree.problem = f"a {type(value).__name__} that cannot be read: {error!r:.100}"
            found = None
        if found is not None:
            return found
    if isinstance(value, Iterator):
        tree.problem = f"a {type(value).__name__}, which can be read only once"
    return {"x": type(value).__name__}


def _flatten_container(value: Any, tree: BatchTree, depth: int) -> dict[str, Any] | None:
    is_deep = depth > _SHALLOW
    if is_deep:
        _enter(value, tree)
    found: dict[str, Any] | None = None
    depth += 1
    num_parts = 0
    entries = _entries(value)
    if entries is not None:
        items = [(key, inner) for key, inner in entries.items() if type(key) in (str, int)]
        num_parts = len(entries)
        if len(items) < num_parts:
            tree.problem = "a dict whose keys are neither strings nor numbers"
        found = {"d": [[key, _flatten(inner, tree, depth)] for key, inner in items]}
    elif isinstance(value, (list, tuple)):
        members = value if type(value) in _ROWS else _members(value)
        num_parts = len(members)
        if num_parts > _SMALL:
            _count(tree, num_parts)  # before they are read: there may be very many
        found = {"l": [_flatten(inner, tree, depth) for inner in members]}
    else:
        own = _attributes(value)
        if own is not None:
            num_parts = len(own)
            found = {"o": [[key, _flatten(inner, tree, depth)] for key, inner in own.items()]}
    if is_deep:
        _count(tree, num_parts)
        _leave(value, tree)
    return found


def _enter(value: Any, tree: BatchTree) -> None:
    around = tree.around
    if around is None:
        around = tree.around = set()
    if id(value) in around:
        raise _CannotBeKeptError("a batch whose parts refer to one another")
    around.add(id(value))


def _leave(value: Any, tree: BatchTree) -> None:
    assert tree.around is not None  # it was entered
    tree.around.discard(id(value))


def _count(tree: BatchTree, num_parts: int) -> None:
    tree.num_parts += num_parts
    if tree.num_parts > _MAX_PARTS:
        raise _CannotBeKeptError(f"more than {_MAX_PARTS} parts")


def _entries(value: Any) -> Mapping[Any, Any] | None:
    """Return the entries of a dict, or of something that wraps one; None if it is neither."""
    if type(value) is dict:
        return value
    if type(value) in _ROWS:
        return None
    if isinstance(value, dict):
        return dict.copy(value)
    if isinstance(value, UserDict):
        return _entries(vars(value).get("data"))
    return dict(value) if type(value) is MappingProxyType else None


def _members(value: Any) -> Sequence[Any]:
    """Return the members of a list or a tuple of a class of its own."""
    members = members_of(value, _MAX_PARTS)
    if members is None:
        raise _CannotBeKeptError(f"more than {_MAX_PARTS} parts")
    return members


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object by name, those in slots included; None if it has none."""
    if isinstance(value, _NO_DATA):
        return None
    own = getattr(value, "__dict__", None)
    slots = slots_of(value) if own is None else []
    if slots:
        return {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return own if isinstance(own, dict) else None


def _flatten_tensor(tensor: Tensor, tree: BatchTree) -> dict[str, Any]:
    kind = type(tensor)
    if kind is not Tensor and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        tree.problem = f"a {kind.__name__}"  # its class says what its operations do
        return {"x": "Tensor"}
    if tensor.layout is not torch.strided or tensor.is_nested:
        tree.problem = "a sparse or nested tensor"
        return {"x": "Tensor"}
    if tensor.is_meta or tensor.is_quantized:
        if tensor.is_quantized:
            tree.problem = "a quantized tensor"
        return {"x": "Tensor"}  # a meta tensor has no data to keep
    tree.tensors.append(tensor)
    return {"t": len(tree.tensors) - 1}


def _flatten_array(array: NDArray[Any], tree: BatchTree) -> dict[str, Any]:
    native = np.ascontiguousarray(array)
    if native.dtype.kind in "biufc" and not native.dtype.isnative:
        native = native.astype(native.dtype.newbyteorder("="))
    try:
        # A copy where it is read-only: torch would warn.
        tensor = torch.from_numpy(native if native.flags.writeable else native.copy())
    except TypeError:
        tree.problem = f"an array of {array.dtype}"
        return {"x": "ndarray"}
    tree.tensors.append(tensor)
    return {"n": len(tree.tensors) - 1}


def rebuild(tree: Any, leaves: Sequence[Tensor], template: Any) -> Any:
    """Rebuild the batch that `flatten` took apart, with the types and devices of `template`."""
    try:
        return _rebuild(tree, leaves, template)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedFile(
            "a kept batch cannot be built again",
            cause=f"{type(error).__name__}: {error}"[:300],
            hint="the script must make batches of the same kind as when the run was trained",
        ) from None


def _rebuild(tree: Any, leaves: Sequence[Tensor], template: Any) -> Any:
    """Return the part of a batch that a node describes: a dict of its kind and its content."""
    kind: str = ""
    content: Any = None
    if isinstance(tree, dict) and len(tree) == 1:
        [(kind, content)] = tree.items()
    if kind == "t":
        leaf = leaves[content]
        return leaf.to(template.device) if isinstance(template, Tensor) else leaf
    if kind == "n":
        return leaves[content].numpy()
    if kind == "v":
        return content
    if kind == "d":
        return _rebuild_mapping(content, leaves, template)
    if kind == "l":
        return _rebuild_sequence(content, leaves, template)
    if kind == "o":
        return _rebuild_object(content, leaves, template)
    if kind == "x":
        return template
    raise ValueError(f"{tree!r:.100} is no part of a batch")


def _rebuild_mapping(content: Any, leaves: Sequence[Tensor], template: Any) -> Any:
    known: Mapping[Any, Any] = template if isinstance(template, Mapping) else {}
    items = {key: _rebuild(inner, leaves, known.get(key)) for key, inner in content}
    if type(known) is dict:
        return items
    made = copy.copy(template)
    for key, value in items.items():
        made[key] = value  # `update` is what some classes refuse
    return made


def _rebuild_sequence(content: Any, leaves: Sequence[Tensor], template: Any) -> Any:
    known = template if isinstance(template, (list, tuple)) else ()
    parts = []
    for place, inner in enumerate(content):
        of_inner = known[place] if place < len(known) else None
        parts.append(_rebuild(inner, leaves, of_inner))
    if not isinstance(template, tuple):
        return parts
    is_named_tuple = hasattr(template, "_fields")
    return type(template)(*parts) if is_named_tuple else tuple(parts)


def _rebuild_object(content: Any, leaves: Sequence[Tensor], template: Any) -> Any:
    own = _attributes(template)
    if own is None:
        raise TypeError(f"a {type(template).__name__} has no attributes")
    made = copy.copy(template)
    for key, inner in content:
        if key in own:
            object.__setattr__(made, key, _rebuild(inner, leaves, own[key]))
    return made


def tokens_of(batch: Any) -> Tensor | None:
    """Return the tensor with the tokens of a batch or a sample: by a common name, otherwise the
    first integer tensor. Never raises.
    """
    if type(batch) is Tensor:
        return batch if _has_tokens(batch) else None
    try:
        return _tokens_of(batch, 0, set())
    except Exception:  # noqa: BLE001  a batch of a class of the user's may raise anything
        return None


def _tokens_of(batch: Any, depth: int, seen: set[int]) -> Tensor | None:
    """Return the tokens of a part of a batch. `seen` are the deep containers that were searched."""
    if isinstance(batch, Tensor):
        return batch if _has_tokens(batch) else None
    if isinstance(batch, np.ndarray):
        return _tokens_of_array(batch)
    if type(batch) in _PLAIN or depth > _MAX_DEPTH:
        return None
    if depth > _SHALLOW:
        if id(batch) in seen:
            return None
        seen.add(id(batch))
    if isinstance(batch, (list, tuple)):
        return _tokens_among(members_of(batch, _MAX_PARTS) or (), depth, seen)
    entries = _entries(batch) or _attributes(batch) or {}
    named = [entries[key] for key in _TOKEN_KEYS if key in entries]
    return _first([*named, *entries.values()], depth, seen)


def _tokens_among(members: Sequence[Any], depth: int, seen: set[int]) -> Tensor | None:
    is_row = bool(members) and all(type(row) is int for row in members)
    return torch.tensor(members) if is_row else _first(members, depth, seen)


def _tokens_of_array(array: NDArray[Any]) -> Tensor | None:
    is_whole = array.dtype.kind in "iu" and array.dtype.isnative
    return torch.from_numpy(np.ascontiguousarray(array)) if is_whole else None


def _has_tokens(tensor: Tensor) -> bool:
    """Return whether a tensor may hold tokens: whole numbers, in at least one dimension."""
    dtype = tensor.dtype  # a method of the tensor would release the GIL
    if dtype.is_floating_point or dtype.is_complex or not tensor.dim():
        return False
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta


def _first(values: Sequence[Any], depth: int, seen: set[int]) -> Tensor | None:
    for value in values:
        found = _tokens_of(value, depth + 1, seen)
        if found is not None:
            return found
    return None


def num_rows(batch: Any, tree: BatchTree | None = None, tokens: Tensor | None = None) -> int:
    """Return the number of samples in a batch: the first dimension of its tokens, or of its first
    tensor.
    """
    if tokens is None:
        tokens = tokens_of(batch)
    if tokens is not None:
        return tokens.shape[0]
    for tensor in (tree or flatten(batch)).tensors:
        if tensor.dim():
            return tensor.shape[0]
    return 0


def token_rows(batch: Any) -> list[list[int]]:
    """Return the tokens of every row, without padding if the batch says what padding is; empty if
    it has no tokens.
    """
    tokens = tokens_of(batch)
    if tokens is None or tokens.dim() < 2:
        return []
    mask = (_entries(batch) or {}).get(_MASK)
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        kept = mask.to(tokens.device, torch.bool)
        if len(tokens[kept].unique()) > 1:  # otherwise it keeps just the padding, by mistake
            return [row[keep].tolist() for row, keep in zip(tokens, kept, strict=True)]
    rows: list[list[int]] = tokens.flatten(1).tolist()
    return rows


def without_rows(batch: Any, keep: Sequence[int]) -> Any:
    """Return a batch with the rows `keep` only, in everything that has one entry per row."""
    tree = flatten(batch)
    count = num_rows(batch, tree)
    chosen = torch.tensor(list(keep))
    kept = []
    for tensor in tree.tensors:
        has_rows = tensor.dim() and len(tensor) == count
        kept.append(tensor.index_select(0, chosen.to(tensor.device)) if has_rows else tensor)
    return rebuild(_cut(tree.plain, keep, count), kept, batch)


def _cut(node: Any, keep: Sequence[int], count: int) -> Any:
    """Return a part of a tree with the chosen entries of its lists of `count` plain values."""
    kind, content = next(iter(node.items()))
    if kind in ("d", "o"):
        return {kind: [[key, _cut(inner, keep, count)] for key, inner in content]}
    if kind != "l":
        return node
    if len(content) == count and all("v" in inner for inner in content):
        return {kind: [content[row] for row in keep]}
    return {kind: [_cut(inner, keep, count) for inner in content]}


def named_rows(given: Any, batch: Any) -> list[tuple[str, int]]:
    """Return the names of a batch's rows: those that the user gave, otherwise names derived from
    their content.
    """
    if given is None:
        return sample_names(batch)
    listed = given.tolist() if hasattr(given, "tolist") else list(given)
    if set(map(type, listed)) == {int}:
        return [(TRAIN, number) for number in listed]
    if all(map(_is_name, listed)):
        return [(str(dataset), number) for dataset, number in listed]
    return sample_names(batch)


def _is_name(value: Any) -> bool:
    """Return whether a value is a dataset and a number."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[1], int)


def sample_names(batch: Any) -> list[tuple[str, int]]:
    """Return a name for every row of an unnamed batch: a digest of its tokens or, if it holds
    pictures or the like, of its bytes in all tensors that have one entry per row.
    """
    rows = token_rows(batch)
    tree = flatten(batch)
    if rows and not any(map(_is_block_of_numbers, tree.tensors)):
        return [(CONTENT, name_of(unpadded(row))) for row in rows]
    count = num_rows(batch, tree)
    parts = [tensor.detach().cpu() for tensor in tree.tensors if tensor.dim()]
    parts = [tensor for tensor in parts if len(tensor) == count]
    if not parts:
        return []
    return [(CONTENT, _digest_of([part[row] for part in parts])) for row in range(count)]


def _is_block_of_numbers(tensor: Tensor) -> bool:
    """Return whether a tensor has more than one number for each place of a row, as pictures and
    sounds have.
    """
    return tensor.is_floating_point() and tensor.dim() >= 3


def names_of_sample(sample: Any) -> set[int]:
    """Return the names that a sample of a dataset may have had as a row of a batch."""
    tokens = tokens_of(sample)
    if tokens is not None and tokens.dim() and not _has_numbers(sample):
        row = tokens.flatten().tolist()
        return {name_of(row), name_of(unpadded(row))}
    tensors = flatten(sample).tensors
    tensors += _plain_labels(sample)
    return {_digest_of(tensors)} if tensors else set()


def _has_numbers(sample: Any) -> bool:
    return any(tensor.is_floating_point() for tensor in flatten(sample).tensors)


def _plain_labels(sample: Any) -> list[Tensor]:
    """Return the numbers of a sample that a loader would make a tensor of, such as a label."""
    parts = sample.values() if isinstance(sample, Mapping) else sample
    if not isinstance(parts, (list, tuple)) and not isinstance(sample, Mapping):
        return []
    return [torch.tensor(part) for part in parts if type(part) in (int, float, bool)]


def name_of(tokens: Sequence[int]) -> int:
    """Return the number that identifies a row of tokens: 63 bits, the same in every process."""
    return _digest(np.asarray(tokens, np.int64).tobytes())


def _digest_of(parts: Sequence[Tensor]) -> int:
    contents = [part.detach().cpu().contiguous().reshape(-1) for part in parts]
    return _digest(b"".join(part.view(torch.uint8).numpy().tobytes() for part in contents))


def _digest(payload: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(payload, digest_size=8).digest(), "little") >> 1


def unpadded(row: Sequence[int]) -> Sequence[int]:
    """Remove repeated tokens at the end of a row, which are padding (or, rarely, text that ends
    that way).
    """
    end = len(row)
    while end > 1 and row[end - 2] == row[-1]:
        end -= 1
    return row[: end - 1] if end < len(row) else row
