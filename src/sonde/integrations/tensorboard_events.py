"""Event files of TensorBoard, read without TensorBoard: the numbers in them, and texts as settings.

A file is a row of records, each with its length, a checksum of that and a checksum of its content (masked CRC-32C), and its content is a message
`Event`. Both ways to write a scalar are read: as a simple value (torch, tensorboardX, TensorFlow 1) and as a tensor without dimensions (TensorFlow 2).
Histograms, pictures and graphs are passed over.

A record whose content does not match its checksum is left out. A length that does not match ends the file there, since nothing says where the next
record begins. Cost: 25 µs a scalar.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from sonde.integrations.importing import Point, Source, folders_with, usual_name, usual_time
from sonde.integrations.wire import fields, inner, signed, text
from sonde.records.files import open_regular

_NAME: Final = "tfevents"
_MAX_BYTES: Final = 64 << 20
_MAX_TEXT: Final = 100_000
_FLOAT, _DOUBLE, _STRING = 1, 2, 7
"""TensorFlow's numbers of the types that are read."""


def tensorboard_sources(path: Path) -> Iterator[Source]:
    """The runs at or below a folder: every folder with event files is one, as TensorBoard has it. A single file is one too."""
    for folder, files in [(path, [path])] if path.is_file() else folders_with(path, _NAME):
        source = Source(path=folder)
        source.points = _points(source, files)
        yield source


def _points(source: Source, files: Sequence[Path]) -> Iterator[Point]:
    for path in files:
        try:
            with open_regular(path, follow=True) as file:
                for content, crc in _records(source, path, file):
                    try:
                        point = _point(source, content)
                    except (ValueError, OverflowError) as error:
                        source.note(f"{path.name}: a record is no event: {error}")
                        continue
                    if point.values and masked_crc(content) != crc:
                        source.note(f"{path.name}: a record at step {point.step} does not match its checksum")
                    elif point.values:
                        yield point
        except OSError as error:
            source.note(f"{path.name}: {error.strerror or error}")


def _records(source: Source, path: Path, file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    size = os.fstat(file.fileno()).st_size
    while head := file.read(12):
        at = file.tell()
        length, crc = struct.unpack("<QI", head) if len(head) == 12 else (0, None)
        if masked_crc(head[:8]) != crc or at + length + 4 > size:
            source.note(
                f"{path.name}: torn or damaged after {at - len(head):,} of {size:,} bytes; the rest was not read"
            )
            return
        if length > _MAX_BYTES:  # pictures or a graph: no scalar is that long
            file.seek(length + 4, os.SEEK_CUR)
            continue
        content = file.read(length)
        yield content, int.from_bytes(file.read(4), "little")


def _point(source: Source, event: bytes) -> Point:
    step, time = 0, None
    values: dict[str, float] = {}
    for number, value in fields(event):
        if number == 1 and isinstance(value, float):
            time = usual_time(value)
        elif number == 2:
            step = signed(value)
        elif number == 5:
            for at, one in fields(inner(value)):
                if at == 1:
                    values |= _scalar(source, inner(one))
    return Point(step, time, values)


def _scalar(source: Source, message: bytes) -> dict[str, float]:
    tag = ""
    found: float | str | None = None
    for at, value in fields(message):
        if at == 1:
            tag = usual_name(text(value))
        elif at == 2 and isinstance(value, float):
            found = value
        elif at == 8:
            found = _single(inner(value))
    if isinstance(found, str):
        source.settings.setdefault(tag, found)
    return {tag: found} if isinstance(found, float) else {}


def _single(tensor: bytes) -> float | str | None:
    """The one number or text in a tensor; None when it holds anything else."""
    kind, content = 0, b""
    for at, value in fields(tensor):
        if at == 1:
            kind = signed(value)
        elif at in (5, 6) and isinstance(value, float):
            return value
        elif at in (4, 5, 6, 8):  # the bytes of all its values, floats, doubles, a string
            content = inner(value)
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
    """The checksum of TensorFlow's records: CRC-32C, turned and shifted."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
