"""The bytes of a safetensors file in memory that is allocated once and refilled at every save.

Training waits only while the tensors are copied into place; a thread then writes the file from this memory without
another copy. The widest types come first, as the format requires, so that every tensor is aligned.
"""

import itertools
import json
from collections.abc import Mapping
from typing import Final, TypeAlias

import torch
from torch import Tensor

from sonde.errors import SettingError

Layout: TypeAlias = tuple[tuple[tuple[str, torch.dtype, tuple[int, ...]], ...], Mapping[str, str] | None]

_ALIGNED: Final = 64
"""Alignment in bytes; the format requires 8. Copying to memory aligned to a cache line is a fifth faster."""
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


class TensorImage:
    """One safetensors file in memory."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._layout: Layout = (), None
        self._views: list[Tensor] = []
        self._names: list[str] = []
        self._num_bytes = 0

    def fill(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> memoryview:
        """Copy the tensors and return the file's bytes, valid until the next call; `metadata` goes into the header."""
        layout = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()), metadata
        if layout != self._layout or not self._num_bytes:
            self._lay_out(tensors, metadata)
            self._layout = layout
        sources = [tensors[name] for name in self._names]
        if self._views:
            torch._foreach_copy_(self._views, sources, non_blocking=True)
        if any(source.is_cuda for source in sources):
            torch.cuda.synchronize()
        return self._memory.numpy().data[: self._num_bytes]

    def _lay_out(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> None:
        for name, tensor in tensors.items():
            if tensor.dtype not in _TYPES:
                raise SettingError(f"{name} is a tensor of {tensor.dtype}, which a checkpoint cannot hold")
        self._names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        ends = list(itertools.accumulate((tensors[name].nbytes for name in self._names), initial=0))
        places = dict(zip(self._names, itertools.pairwise(ends), strict=True))
        entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
        for name, place in places.items():
            tensor = tensors[name]
            entries[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-(8 + len(header)) % _ALIGNED)
        start = 8 + len(header)
        self._num_bytes = start + ends[-1]
        if len(self._memory) < self._num_bytes:
            pinned = any(tensor.is_cuda for tensor in tensors.values())
            self._memory = torch.empty(self._num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._memory.numpy().data[:start] = len(header).to_bytes(8, "little") + header
        content = self._memory[start:]
        self._views = [
            content[first:end].view(tensors[name].dtype).view(tensors[name].shape)
            for name, (first, end) in places.items()
        ]
