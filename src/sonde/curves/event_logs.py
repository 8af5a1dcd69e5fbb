"""Read TensorBoard and wandb logs without either package: checksummed records of schemaless
protocol buffer messages.

A TensorBoard event file is a sequence of records: length, checksum of the length, content, checksum
of the content (masked CRC-32C). The content is an `Event` message. Scalars are read in both
encodings: as a simple value (torch, tensorboardX, TensorFlow 1) and as a zero-dimensional tensor
(TensorFlow 2). Texts become settings; histograms, images and graphs are skipped. A record whose
content does not match its checksum is dropped. A length that does not match ends the file, because
the start of the next record is unknown. Cost: 25 µs per scalar.

`wandb/offline-run-…/run-….wandb` has a header of seven bytes followed by 32 KiB blocks as in
LevelDB's log format: fragments of records, each with a checksum, its length, and whether it is a
whole record or its first, middle or last part. A record is a `Record` message, of which history,
settings, metrics and exit are read. The step is the metric that the script chose as its axis
(`define_metric(step_metric=…)`, as Hugging Face does), otherwise wandb's own counter. A fragment
that does not match its checksum loses the rest of its block and the record it belongs to.

Safe for arbitrary bytes: anything that is not a message raises ValueError and is noted. Memory is
limited to slices of the input.
"""

import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar

from sonde.curves.points import Point, Source, is_number, usual_name, usual_time
from sonde.records.files import open_regular

_MAX_BYTES: Final = 64 << 20
_MAX_TEXT: Final = 100_000
_FLOAT = 1
_DOUBLE = 2
_STRING = 7
"""TensorFlow's numbers for the data types that are read."""
_FIXED: Final = {1: struct.Struct("<d"), 5: struct.Struct("<f")}
"""Numbers of fixed size, by wire type."""
_WANDB: Final = ".wandb"
_HEAD: Final = b":W&B\xe1\xbe\x00"
_BLOCK: Final = 1 << 15
_PART: Final = struct.Struct("<IHB")
_WHOLE = 1
_FIRST = 2
_LAST = 4
_HISTORY = 2
_CONFIG = 5
_METRIC = 12
_RUN = 17
_EXIT = 18
"""Field numbers of a wandb record."""
_OWN: Final = ("_step", "_runtime", "_timestamp", "_wandb")

_Record = TypeVar("_Record")
Value: TypeAlias = int | float | bytes
"""The value of a field: varints as unsigned int, 64-bit and 32-bit values as float,
length-delimited values as bytes.
"""


def fields(message: bytes) -> dict[int, list[Value]]:
    """Return the values of every field by its number, in order."""
    found: dict[int, list[Value]] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        value: Value
        if kind in _FIXED:
            (value,) = _FIXED[kind].unpack_from(message, at)
            at += _FIXED[kind].size
        elif kind in (0, 2):
            value, at = _varint(message, at)
        else:
            raise ValueError(f"a field of wire type {kind}")
        if kind == 2:
            end = at + int(value)
            value = message[at:end]
            at = end
        if at > len(message):
            raise ValueError("a field is longer than its message")
        found.setdefault(key >> 3, []).append(value)
    return found


def last(found: dict[int, list[Value]], number: int) -> Value | None:
    """Return the last value of a field, which is the one that counts, or None."""
    return found.get(number, [None])[-1]


def inner(value: Value) -> bytes:
    """Return a value that must be a message or a string, as bytes."""
    if not isinstance(value, bytes):
        raise ValueError("a number stands where a message should")
    return value


def text(value: Value) -> str:
    """Return a value that must be a string."""
    return inner(value).decode(errors="replace")


def signed(value: Value) -> int:
    """Return a value that must be an int64."""
    if not isinstance(value, int):
        raise ValueError("no whole number")
    return value - (1 << 64) if value >> 63 else value


def folders_with(folder: Path, holding: str) -> Iterator[tuple[Path, list[Path]]]:
    """Yield every folder at or below `folder` with files whose names contain `holding`, and those
    files sorted.

    Symbolic links are not followed.
    """
    for root, folders, names in os.walk(folder):
        folders.sort()
        found = sorted(name for name in names if holding in name)
        if found:
            yield Path(root), [Path(root, name) for name in found]


def is_event_file(head: bytes) -> bool:
    """Return whether a file that begins like this is an event file of TensorBoard."""
    return len(head) >= 12 and masked_crc(head[:8]) == int.from_bytes(head[8:12], "little")


def is_wandb_file(head: bytes) -> bool:
    """Return whether a file that begins like this was written by wandb."""
    return head.startswith(_HEAD)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at = at + 1
        shift = shift + 7
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number has no end")


def tensorboard_sources(path: Path) -> Iterator[Source]:
    """Yield the runs at or below a folder. As in TensorBoard, every folder with event files is a
    run; so is a single file.
    """
    for folder, files in [(path, [path])] if path.is_file() else folders_with(path, "tfevents"):
        source = Source(path=folder, format="TensorBoard event files")
        found = [
            _read(source, file, _event_records, partial(_event_points, source)) for file in files
        ]
        source.points = chain.from_iterable(found)
        yield source


def _read(
    source: Source,
    path: Path,
    records: Callable[[Source, str, BinaryIO], Iterator[_Record]],
    points: Callable[[_Record], Iterator[Point]],
) -> Iterator[Point]:
    """Yield the points in the records of a file; what cannot be read is noted."""
    try:
        with open_regular(path, follow=True) as file:
            for record in records(source, path.name, file):
                try:
                    yield from points(record)
                except (ValueError, OverflowError, RecursionError, struct.error) as error:
                    source.note(f"{path.name}: a record cannot be read: {error}")
    except OSError as error:
        source.note(f"{path.name}: {error.strerror or error}")


def _event_records(source: Source, name: str, file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield the content and the checksum of each record."""
    size = os.fstat(file.fileno()).st_size
    while head := file.read(12):
        at = file.tell()
        length, crc = struct.unpack("<QI", head) if len(head) == 12 else (0, None)
        if masked_crc(head[:8]) != crc or at + length + 4 > size:
            sentence = (
                f"torn or damaged after {at - len(head):,} of {size:,} bytes; the rest was not read"
            )
            source.note(f"{name}: {sentence}")
            return
        if length > _MAX_BYTES:  # images or a graph: no scalar is that long
            file.seek(length + 4, os.SEEK_CUR)
            continue
        content = file.read(length)
        yield content, int.from_bytes(file.read(4), "little")


def _event_points(source: Source, record: tuple[bytes, int]) -> Iterator[Point]:
    content, crc = record
    event = fields(content)
    values: dict[str, float] = {}
    for summary in event.get(5, []):
        for value in fields(inner(summary)).get(1, []):
            values |= _scalar(source, inner(value))
    step = signed(last(event, 2) or 0)
    time = last(event, 1)
    if not values:
        return
    if masked_crc(content) != crc:
        raise ValueError(f"step {step} does not match its checksum")
    yield Point(step, usual_time(time) if isinstance(time, float) else None, values)


def _scalar(source: Source, message: bytes) -> dict[str, float]:
    value = fields(message)
    tag = usual_name(text(last(value, 1) or b""))
    tensor = last(value, 8)
    found = last(value, 2) if tensor is None else _single(inner(tensor))
    if isinstance(found, str):
        source.settings.setdefault(tag, found)
    return {tag: found} if isinstance(found, float) else {}


def _single(message: bytes) -> float | str | None:
    """Return the single number or string in a tensor, or None if it holds anything else."""
    tensor = fields(message)
    for value in [*tensor.get(5, []), *tensor.get(6, [])]:
        if isinstance(value, float):
            return value
    kind = last(tensor, 1)
    content = b""
    # The raw bytes of all values, packed floats or doubles, or a string.
    for number in (4, 5, 6, 8):
        packed = last(tensor, number)
        if packed is not None:
            content = inner(packed)
            break
    if kind == _STRING:
        return text(content[:_MAX_TEXT])
    if (kind, len(content)) in ((_FLOAT, 4), (_DOUBLE, 8)):
        return float(struct.unpack("<f" if kind == _FLOAT else "<d", content)[0])
    return None


def _table() -> list[int]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return found


_TABLE: Final = _table()


def masked_crc(content: bytes) -> int:
    """Compute the checksum of TensorFlow's records: CRC-32C, rotated and offset."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def wandb_sources(path: Path) -> Iterator[Source]:
    """Yield the runs at or below a folder, or in a file."""
    if path.is_file():
        yield _wandb_source(path, path)
        return
    for folder, files in folders_with(path, _WANDB):
        for file in files:
            if file.suffix == _WANDB:
                # the folder has the run's name, unless it holds several
                yield _wandb_source(file, folder if len(files) == 1 else file)


def _wandb_source(file: Path, named: Path) -> Source:
    """Return the run in a file, to be read when its points are asked for; `named` is its name."""
    source = Source(path=named, format="a wandb file")
    source.points = _read(source, file, _records, partial(_points, source, set()))
    return source


def _points(source: Source, axes: set[str], record: bytes) -> Iterator[Point]:
    for number, values in fields(record).items():
        if number == _HISTORY:
            yield from (_point(inner(value), axes) for value in values)
        elif number in (_CONFIG, _METRIC, _RUN, _EXIT):
            _take(source, axes, number, inner(values[-1]))


def _records(source: Source, name: str, file: BinaryIO) -> Iterator[bytes]:
    """Yield whole records, joined from their fragments."""
    if file.read(len(_HEAD)) != _HEAD:
        source.note(f"{name} does not begin as a file of wandb does")
        return
    parts: list[bytes] = []
    for kind, content in _parts(source, file):
        if kind in (_WHOLE, _FIRST):
            parts = []
        elif not parts:
            continue  # its beginning is lost
        parts.append(content)
        if sum(map(len, parts)) > _MAX_BYTES:
            parts = []
        elif kind in (_WHOLE, _LAST):
            yield b"".join(parts)
            parts = []
    if parts:
        source.note("the last record is torn")


def _parts(source: Source, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    start = len(_HEAD)
    while block := file.read(_BLOCK - start):
        at = 0
        while at + _PART.size <= len(block):
            crc, length, kind = _PART.unpack_from(block, at)
            at += _PART.size
            content = block[at : at + length]
            if crc == length == kind == 0:
                break  # the writer left the rest of the block empty
            is_whole = len(content) == length and _WHOLE <= kind <= _LAST
            if not is_whole or zlib.crc32(bytes([kind]) + content) != crc:
                sentence = f"torn or damaged before byte {file.tell():,}"
                source.note(f"{sentence}; up to {len(block) - at:,} bytes were not read")
                yield _WHOLE, b""  # the record it belonged to is lost
                break
            yield kind, content
            at += length
        start = 0


def _point(message: bytes, axes: set[str]) -> Point:
    history = fields(message)
    named = dict(_item(inner(value)) for value in history.get(1, []))
    step = signed(last(fields(inner(last(history, 2) or b"")), 1) or 0)
    values = {name: float(found) for name, found in sorted(named.items()) if is_number(found)}
    axis = next((values[name] for name in sorted(axes) if name in values), math.nan)
    step = int(axis) if axis.is_integer() else int(values.get("_step", step))
    shown = {usual_name(name): found for name, found in values.items() if name not in _OWN}
    return Point(step, usual_time(values.get("_timestamp")), shown)


def _item(message: bytes) -> tuple[str, Any]:
    """Return the name and value of an item of the history or the settings."""
    item = fields(message)
    name = "/".join(text(value) for at in (1, 2) for value in item.get(at, []))
    found: Any = None
    for at, (*_, value) in item.items():
        if at == 4:
            found = bool(value)
        elif at == 5:  # zigzag-encoded
            whole = signed(value)
            found = (whole >> 1) ^ -(whole & 1)
        elif at == 6:
            found = value
        elif at in (8, 16):
            found = json.loads(text(value))
    return name, found


def _take(source: Source, axes: set[str], number: int, message: bytes) -> None:
    """Store settings, a step axis, or the exit status."""
    for at, values in fields(message).items():
        for value in values:
            if number == _METRIC and at == 4:
                axes.add(text(value))
            elif number == _EXIT and at == 1:
                source.failed = value != 0
            elif number == _CONFIG and at == 1:
                _take_setting(source, inner(value))
            elif number == _RUN:
                _take_of_run(source, axes, at, value)


def _take_of_run(source: Source, axes: set[str], at: int, value: Value) -> None:
    if at == 3:
        source.settings["project"] = text(value)
    elif at == 8:
        source.settings["name"] = text(value)
    elif at == 4:
        _take(source, axes, _CONFIG, inner(value))


def _take_setting(source: Source, message: bytes) -> None:
    name, found = _item(message)
    if name not in _OWN:
        source.settings[name] = found
