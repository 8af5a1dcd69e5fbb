"""Kept batches: append-only files of updates, each record with a checksum (docs/formats/flight.md).

    RUN/flight/batches-000000000200.rank0.bin      the batches of the updates after the 200th, of
                                                   rank 0

An update is written with a single write, so everything written before a kill is intact; readers
skip a torn end, and it is truncated before anything is appended. Integers are stored in the
narrowest type that fits. Nothing is pickled, so a malicious file can at worst contain wrong
numbers.
"""

import contextlib
import io
import math
import mmap
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.errors import DamagedFile, SettingError
from sonde.recorder.moment import Host, Moment
from sonde.recorder.update import Update
from sonde.records import disk
from sonde.records.files import open_regular
from sonde.records.values import decode, encode

_MAGIC: Final = b"SONDE-FLIGHT\x00\x00\x00\x01"
_RECORD: Final = struct.Struct("<4sIQI")
"""Magic, bytes of the header, bytes of header and tensors, CRC-32 of both."""
_MARK: Final = b"UPDT"
_NAME: Final = re.compile(r"batches-(?P<step>\d{12})\.rank(?P<rank>\d{1,6})\.bin")
_MAX_HEADER_BYTES: Final = 64 << 20
_MAX_FALSE: Final = 20
"""Places in a file that are no record; with more, nothing in it is trusted."""
_NARROW: Final = [
    (name, np.iinfo(name).min, np.iinfo(name).max) for name in ("uint8", "int16", "uint16", "int32")
]
"""Integers are stored in the first of these types that fits their values."""
_DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
        *(
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint64,
            torch.uint32,
            torch.uint16,
            torch.uint8,
        ),
    )
}


class KeptMicroBatch(msgspec.Struct):
    """One micro-batch as it was kept. `batch_tree.rebuild` converts it back to a batch."""

    tree: Any
    tensors: list[Any]
    """Its tensors; in the file, their types and shapes."""
    moment: Any
    """Its `Moment`; in the file, what is not in tensors."""
    last: bool | None = None
    """The `last` argument that the step function received."""
    names: Any = None
    """The names of its samples, if the user gave some."""


class KeptUpdate(msgspec.Struct):
    """One update as it was kept."""

    step: int
    had_gradients: bool
    """Whether gradients of the previous update were still there when it began."""
    rates: list[float]
    """The learning rate of every parameter group."""
    loss_from: str
    """Where the loss came from: the user ("told"), the model ("returned"), what backward was called
    on ("backward"), or the step function at its end ("step").
    """
    micro: list[KeptMicroBatch]
    precision: str | None = None
    """The autocast precision of the forward pass; None without autocast."""
    loss_factor: float = 1.0
    """How many times the loss is as large as what backward was called on."""


def encode_update(update: Update, start: int) -> list[Any]:
    """Encode an update as the parts of one record: bytes or buffers. Its tensors are copied.

    `start` says how often the run was started: of a step that was repeated after a restart, the
    batches of the later start count.
    """
    blobs: list[Any] = []
    header = _known(
        step=update.step,
        start=start,
        time=time.time(),
        had_gradients=update.had_gradients,
        rates=list(update.rates),
        loss_from=update.loss_from,
        precision=update.precision,
        loss_factor=None if update.loss_factor == 1.0 else update.loss_factor,
        micro=[
            _known(
                tree=micro.tree.plain,
                tensors=[_store(tensor, blobs) for tensor in micro.to_write()],
                moment=_store_moment(micro.moment, blobs),
                last=micro.last,
                names=micro.names.tolist() if hasattr(micro.names, "tolist") else micro.names,
            )
            for micro in update.micro
        ],
    )
    head = encode(header, max_bytes=_MAX_HEADER_BYTES)
    crc = zlib.crc32(head)
    size = len(head)
    for blob in blobs:
        crc = zlib.crc32(blob, crc)
        size = size + blob.nbytes
    return [_RECORD.pack(_MARK, len(head), size, crc), head, *blobs]


def decode_update(payload: memoryview, header_bytes: int) -> KeptUpdate:
    """Decode the header and tensors of a record whose checksum is valid. Raises DamagedFile for
    anything unexpected.
    """
    try:
        update = msgspec.convert(decode(bytes(payload[:header_bytes])), KeptUpdate)
        blobs = io.BytesIO(payload[header_bytes:])
        for micro in update.micro:
            micro.tensors = [_restore(entry, blobs) for entry in micro.tensors]
            micro.moment = _restore_moment(micro.moment, blobs)
        return update
    except Exception as error:  # noqa: BLE001
        # a hostile file can make the code above raise anything
        raise DamagedFile(
            "a kept batch cannot be understood", cause=f"{type(error).__name__}: {error}"
        ) from None


class BatchFile:
    """A file of kept batches, open for appending."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; a torn end is truncated."""
        disk.make_directories(path.parent)
        flags = (
            os.O_RDWR
            | os.O_APPEND
            | os.O_CREAT
            | getattr(os, "O_CLOEXEC", 0)
            | getattr(os, "O_NOFOLLOW", 0)
        )
        self.path = path
        self.num_bytes = _whole_bytes(path)
        self._descriptor = disk.open_file(path, flags, 0o644)
        os.ftruncate(self._descriptor, self.num_bytes)
        if not self.num_bytes:
            disk.write_all(self._descriptor, _MAGIC)
            self.num_bytes = len(_MAGIC)

    def append(self, pieces: Sequence[Any]) -> None:
        """Append records. Raises OSError if the disk fails; then none of them remain."""
        payload = b"".join(pieces)
        try:
            disk.write_all(self._descriptor, payload)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.num_bytes)
            raise
        self.num_bytes += len(payload)

    def close(self) -> None:
        """Close the file."""
        disk.close(self._descriptor)


class KeptBatches:
    """All kept batches of one rank, by step."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._places: dict[int, tuple[tuple[int, int], Path, int, int, int]] = {}
        self.problems: list[str] = []
        """Descriptions of files that are truncated or cannot be read."""
        for place, (_, path) in enumerate(batch_files(folder, rank)):
            self._scan(path, place)

    def steps(self) -> list[int]:
        """Return the updates whose batches were kept, in order."""
        return sorted(self._places)

    def load(self, step: int) -> KeptUpdate:
        """Load the batches of an update."""
        if step not in self._places:
            steps = self.steps()
            raise SettingError(
                f"the batch of step {step} was not kept",
                cause="; ".join(self.problems) or None,
                hint=f"kept are the steps {steps[0]} to {steps[-1]}" if steps else "kept are none",
            )
        _, path, offset, size, header_bytes = self._places[step]
        with open_regular(path) as file:
            file.seek(offset)
            return decode_update(memoryview(file.read(size)), header_bytes)

    def _scan(self, path: Path, place: int) -> None:
        try:
            for offset, size, header_bytes, head in _records(path, self.problems):
                try:
                    header: Any = decode(head)
                    step = int(header["step"])
                    # Not the clock, which may be set back. Records of older versions do not say
                    # the start.
                    age = (int(header.get("start", 0)), place)
                except (ValueError, TypeError, KeyError, OverflowError):
                    self.problems.append(
                        f"{path} is damaged before byte {offset}: that record does not say its step"
                    )
                    continue
                # Of a step that was repeated after a restart, the last one counts.
                if step not in self._places or self._places[step][0] <= age:
                    self._places[step] = (age, path, offset, size, header_bytes)
        except (OSError, DamagedFile) as error:
            self.problems.append(str(getattr(error, "message", error)))


def batch_path(folder: Path, step: int, rank: int) -> Path:
    """Return the path of the file for the updates after `step`."""
    return folder / f"batches-{step:012d}.rank{rank}.bin"


def batch_files(folder: Path, rank: int) -> list[tuple[int, Path]]:
    """Return the files of one rank with their first steps, in order."""
    try:
        found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(
        (int(match["step"]), path) for match, path in found if match and int(match["rank"]) == rank
    )


def _records(path: Path, problems: list[str]) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield the offset, size, header size and header of every intact record.

    A damaged record is noted and skipped. Where its size is damaged, reading goes on at the next
    mark; a file with very many false marks raises DamagedFile.
    """
    with open_regular(path) as file:
        total = os.fstat(file.fileno()).st_size
        magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            if len(magic) < len(_MAGIC) and _MAGIC.startswith(magic):
                return
            raise DamagedFile(f"{path} is no file of kept batches")
        offset = len(_MAGIC)
        num_false = 0
        while offset + _RECORD.size <= total:
            file.seek(offset)
            mark, header_bytes, size, crc = _RECORD.unpack(file.read(_RECORD.size))
            end = offset + _RECORD.size + size
            is_possible = (
                mark == _MARK and header_bytes <= min(size, _MAX_HEADER_BYTES) and end <= total
            )
            payload = file.read(size) if is_possible else b""
            if is_possible and zlib.crc32(payload) == crc:
                yield offset + _RECORD.size, size, header_bytes, payload[:header_bytes]
            elif is_possible and (end == total or file.read(len(_MARK)) == _MARK):
                problems.append(f"{path} is damaged at byte {offset}: its checksum differs")
            else:
                problems.append(f"{path} is torn or damaged at byte {offset}")
                num_false += 1
                if num_false > _MAX_FALSE:
                    raise DamagedFile(f"{path} is damaged throughout")
                end = _next_mark(file, offset + 1)
            offset = end


def _next_mark(file: BinaryIO, start: int) -> int:
    """Return where the next record may begin, or the end of the file."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = content.find(_MARK, start)
        return place if place >= 0 else len(content)


def _whole_bytes(path: Path) -> int:
    """Return the offset after the last complete record; 0 if there is no file. Damage before that
    remains: readers skip it.
    """
    end = 0
    with contextlib.suppress(FileNotFoundError, DamagedFile):
        for offset, size, _, _ in _records(path, []):
            end = offset + size
        if path.stat().st_size >= len(_MAGIC):
            end = max(end, len(_MAGIC))
    return end


def _store(tensor: Tensor, blobs: list[Any]) -> dict[str, Any]:
    dtype = stored = _name(tensor.dtype)
    if dtype in ("int64", "int32") and tensor.numel():
        values = tensor.detach().cpu().numpy()
        low = int(values.min())
        high = int(values.max())
        stored = next(
            (name for name, least, most in _NARROW if least <= low and high <= most), dtype
        )
        blobs.append(values.astype(stored, order="C"))
    else:
        blobs.append(_bytes_of(tensor.detach().to("cpu", copy=True).contiguous()))
    return {"dtype": dtype, "stored": stored, "shape": list(tensor.shape)}


def _restore(entry: Mapping[str, Any], blobs: io.BytesIO) -> Tensor:
    stored = _DTYPES[entry["stored"]]
    shape = entry["shape"]
    content = _taken(blobs, math.prod(shape) * stored.itemsize)
    return content.view(stored).reshape(shape).to(_DTYPES[entry["dtype"]])


def _store_moment(moment: Moment, blobs: list[Any]) -> dict[str, Any]:
    sizes = []
    for state in (moment.cpu, moment.device):
        if state is not None:
            blobs.append(_bytes_of(state.cpu()))
            sizes.append(state.numel())
    autocast = None if moment.autocast is None else [_name(moment.autocast[0]), moment.autocast[1]]
    return _known(sizes=sizes, host=moment.host, autocast=autocast)


def _known(**fields: Any) -> dict[str, Any]:
    """Drop fields that are None, which is the default for missing fields."""
    return {name: value for name, value in fields.items() if value is not None}


def _restore_moment(entry: Mapping[str, Any], blobs: io.BytesIO) -> Moment:
    states = [_taken(blobs, int(size)) for size in entry["sizes"]]
    dtype, caches = entry.get("autocast") or (None, None)
    autocast = None if dtype is None else (_DTYPES[dtype], bool(caches))
    host = msgspec.convert(entry.get("host"), Host | None)
    return Moment(states[0], states[1] if len(states) > 1 else None, host, autocast)


def _taken(blobs: io.BytesIO, num_bytes: int) -> Tensor:
    """Read the next bytes of a record."""
    content = bytearray(blobs.read(num_bytes))
    if len(content) != num_bytes:
        raise ValueError("a tensor is larger than its record")
    return (
        torch.frombuffer(content, dtype=torch.uint8)
        if content
        else torch.empty(0, dtype=torch.uint8)
    )


def _bytes_of(tensor: Tensor) -> NDArray[Any]:
    return tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.zeros(0, np.uint8)


def _name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"tensors of {dtype} cannot be kept")
    return name
