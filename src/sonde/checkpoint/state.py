"""Convert a training state to one JSON document and the bytes of a tensor file, and back, bit for
bit.

A state consists of nested dicts, lists and tuples of numbers, strings, bytes, None and tensors:
what `state_dict` methods return. Anything else is refused on *saving*, with its place in the state,
because it could not be restored. Tensors that share memory (tied embeddings) are written once and
shared again on loading.

    {"model": {"w": tensor}, "step": 3}   ->   {"model": {"w": {"@tensor": "model/w"}}, "step": 3}
                                               and  {"model/w": tensor}

Sharded tensors (FSDP2) are kept separately: each rank writes its own part to a safetensors file
with the parts' places in a JSON header, in the layout of `torch.distributed.checkpoint`, which
reads the files. Nothing is pickled, so loading cannot run code, and the checksums are verified
before torch reads them. A checkpoint can be loaded with another number of ranks, or in a single
process.
"""

import itertools
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from sonde.errors import DamagedFile, SettingError

_TENSOR: Final = "@tensor"
_SHARDED: Final = "@sharded"
_TUPLE: Final = "@tuple"
_LAYOUT: Final = {"DCP_VERSION": "1.0", "format": "pt"}
"""The metadata with which torch marks a file with parts of tensors."""
_RESERVED: Final = frozenset({_TENSOR, _SHARDED, _TUPLE})
_PLAIN: Final = (bool, int, float, str, bytes, type(None))
_ALIGNED: Final = 64
"""Alignment in bytes; the format requires 8. Copying to memory aligned to a cache line is a fifth
faster.
"""
_TYPES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}


def split_state(state: Mapping[str, Any]) -> "Parts":
    """Return the document and the tensors of a state. The tensors are detached, not copied."""
    parts = Parts({}, {}, {})
    parts.document.update(_split(state, "", parts, {}))
    return parts


def join_state(
    document: object, tensors: Mapping[str, Tensor], sharded: Mapping[str, Tensor] = {}
) -> Any:
    """Rebuild the state that `split_state` took apart."""
    if isinstance(document, list):
        return [join_state(child, tensors, sharded) for child in document]
    if not isinstance(document, dict):
        return document
    for mark, found in ((_TENSOR, tensors), (_SHARDED, sharded)):
        if document.keys() == {mark}:
            name = document[mark]
            if not isinstance(name, str) or name not in found:
                raise DamagedFile(f"the checkpoint lacks the tensor {name!r}")
            return found[name]
    if document.keys() == {_TUPLE}:
        return tuple(join_state(child, tensors, sharded) for child in document[_TUPLE])
    return {key: join_state(child, tensors, sharded) for key, child in document.items()}


class Parts(NamedTuple):
    """The parts of a split state."""

    document: dict[str, Any]
    tensors: dict[str, Tensor]
    sharded: dict[str, Tensor]
    """The tensors that are sharded over ranks."""


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
                f"a key of the state is reserved: {place or 'the state'} has one of"
                f" {', '.join(sorted(_RESERVED))}"
            )
        return {
            key: _split(child, f"{place}/{key}".lstrip("/"), parts, names)
            for key, child in value.items()
        }
    if type(value) in (list, tuple):
        children = [
            _split(child, f"{place}/{index}", parts, names) for index, child in enumerate(value)
        ]
        return {_TUPLE: children} if type(value) is tuple else children
    raise SettingError(
        f"{place} is a {type(value).__name__}, which a checkpoint cannot hold",
        cause="a checkpoint is plain data and tensors; objects would have to be pickled",
        hint="return dicts, lists, numbers, strings, bytes and tensors from state_dict()",
    )


def _keep(
    tensor: Tensor, place: str, tensors: dict[str, Tensor], names: dict[tuple[object, ...], str]
) -> str:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise SettingError(
            f"{place} is a tensor of a kind that a checkpoint cannot hold",
            cause=f"layout {tensor.layout}",
        )
    tensor = tensor.detach()
    same = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
    if tensor.numel() and same in names:
        return names[same]
    name = place
    number = 1
    while name in tensors:  # {"a": {"b": …}, "a/b": …} would collide
        number += 1
        name = f"{place}#{number}"
    names[same] = name
    tensors[name] = tensor
    return name


class TensorImage:
    """The bytes of a safetensors file, in memory that is allocated once and refilled at every save.

    Training waits only while the tensors are copied into place; a thread then writes the file from
    this memory without another copy. The widest types come first, as the format requires, so that
    every tensor is aligned.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def fill(
        self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> memoryview:
        """Copy the tensors and return the file's bytes, valid until the next call; `metadata` goes
        into the header.
        """
        unknown = [name for name, tensor in tensors.items() if tensor.dtype not in _TYPES]
        if unknown:
            raise SettingError(
                f"{unknown[0]} is a tensor of {tensors[unknown[0]].dtype}, which a checkpoint"
                " cannot hold"
            )
        names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        sources = [tensors[name] for name in names]
        ends = list(itertools.accumulate((source.nbytes for source in sources), initial=0))
        places = list(itertools.pairwise(ends))
        entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
        for name, source, place in zip(names, sources, places, strict=True):
            entries[name] = {
                "dtype": _TYPES[source.dtype],
                "shape": list(source.shape),
                "data_offsets": place,
            }
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-(8 + len(header)) % _ALIGNED)
        start = 8 + len(header)
        num_bytes = start + ends[-1]
        is_on_gpu = any(source.is_cuda for source in sources)
        if len(self._memory) < num_bytes:
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=is_on_gpu)
        content = self._memory[start:]
        copies = [
            content[first:end].view(source.dtype).view(source.shape)
            for source, (first, end) in zip(sources, places, strict=True)
        ]
        for copy, source in zip(copies, sources, strict=True):
            copy.copy_(source, non_blocking=True)
        if is_on_gpu:
            torch.cuda.synchronize()
        image = self._memory.numpy().data[:num_bytes]
        image[:start] = len(header).to_bytes(8, "little") + header
        return image


def is_sharded(state: object) -> bool:
    """Return whether a state contains tensors that are sharded over ranks."""
    if isinstance(state, Mapping):
        return any(is_sharded(value) for value in state.values())
    if isinstance(state, (list, tuple)):
        return any(is_sharded(value) for value in state)
    return isinstance(state, DTensor)


def part_name(rank: int) -> str:
    """Return the name of a rank's file, following torch's convention."""
    return f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"


def own_part(
    sharded: Mapping[str, Tensor], chunks: dict[object, ChunkStorageMetadata]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return what this rank saves of sharded tensors, not copied, and the header that says where it
    belongs.

    Of the ranks that hold the same values, only the first saves them. `chunks` keeps the places of
    the parts for the next time, because torch takes a millisecond to find that of a large tensor.
    """
    parts = {}
    places = {}
    for name, tensor in sharded.items():
        assert isinstance(tensor, DTensor)
        place = tensor.device_mesh.get_coordinate()
        if place is None or any(
            at for at, kind in zip(place, tensor.placements, strict=True) if kind.is_replicate()
        ):
            continue
        layout = tensor.shape, tensor.device_mesh, tensor.placements
        if layout not in chunks:
            # This is how torch's own checkpoints ask a tensor where its part belongs.
            (chunks[layout],) = tensor.__create_chunk_list__()
        chunk = chunks[layout]
        if chunk.sizes.numel() or not tensor.numel():
            parts[name] = tensor.to_local()
            places[name] = {"saved_offsets": list(chunk.offsets)}
    return parts, {"DCP_SHARDING_INFO": json.dumps(places), **_LAYOUT}


def load_sharded(shards: Path, template: Mapping[str, Any] | None) -> dict[str, Tensor]:
    """Load the sharded tensors of a verified checkpoint: sharded like `template`, or whole without
    it.
    """
    reader = HuggingFaceStorageReader(str(shards))
    if template is None:
        parts = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in reader.read_metadata().state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
    else:
        parts = {name: part.clone() for name, part in split_state(template).sharded.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about its internals
        load(parts, storage_reader=reader, no_dist=template is None)
    return parts
