"""What wandb leaves on the disk, read without wandb: the numbers of `run.log`, the settings, and how it ended.

`wandb/offline-run-…/run-….wandb` is a head of seven bytes, then blocks of 32 KiB as in LevelDB's log: parts of records, each with a checksum, its
length and whether it is whole, the first, a middle or the last part. A record is a message `Record`; of these history, settings, metrics and the end are
read. The step is the metric that the script made the axis (`define_metric(step_metric=…)`, as Hugging Face does), or else wandb's own count.

A part that does not match its checksum costs the rest of its block, and what was spread over it.
"""

import json
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from sonde.integrations.importing import Point, Source, folders_with, is_number, usual_name, usual_time
from sonde.integrations.wire import fields, inner, signed, text
from sonde.records.files import open_regular

_ENDING: Final = ".wandb"
_HEAD: Final = b":W&B\xe1\xbe\x00"
_BLOCK: Final = 1 << 15
_PART: Final = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MAX_BYTES: Final = 64 << 20
_HISTORY, _CONFIG, _METRIC, _RUN, _EXIT = 2, 5, 12, 17, 18
"""Fields of a record."""
_OWN: Final = ("_step", "_runtime", "_timestamp", "_wandb")


def wandb_sources(path: Path) -> Iterator[Source]:
    """The runs at or below a folder, or in a file."""
    for folder, files in [(path.parent, [path])] if path.is_file() else folders_with(path, _ENDING):
        for file in files:
            if file.suffix == _ENDING:
                source = Source(path=file if path.is_file() or len(files) > 1 else folder)
                source.points = _points(source, file)
                yield source


def _points(source: Source, path: Path) -> Iterator[Point]:
    axes: set[str] = set()
    try:
        with open_regular(path, follow=True) as file:
            for record in _records(source, path.name, file):
                try:
                    for number, value in fields(record):
                        if number == _HISTORY:
                            yield from _point(inner(value), axes)
                        elif number in (_CONFIG, _METRIC, _RUN, _EXIT):
                            _take(source, axes, number, inner(value))
                except (ValueError, OverflowError, RecursionError) as error:
                    source.note(f"{path.name}: a record cannot be read: {error}")
    except OSError as error:
        source.note(f"{path.name}: {error.strerror or error}")


def _records(source: Source, name: str, file: BinaryIO) -> Iterator[bytes]:
    """Whole records, put together from their parts."""
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
            if (
                len(content) < length
                or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST)
                or zlib.crc32(bytes([kind]) + content) != crc
            ):
                source.note(
                    f"torn or damaged before byte {file.tell():,}; up to {len(block) - at:,} bytes were not read"
                )
                yield _WHOLE, b""  # what it was a part of is lost
                break
            yield kind, content
            at += length
        start = 0


def _point(history: bytes, axes: set[str]) -> Iterator[Point]:
    step, named = 0, {}
    for number, value in fields(history):
        if number == 1:
            name, found = _item(inner(value))
            named[name] = found
        elif number == 2:
            step = next((signed(one) for at, one in fields(inner(value)) if at == 1), 0)
    values = {name: float(found) for name, found in sorted(named.items()) if is_number(found)}
    axis = next((values[one] for one in sorted(axes) if one in values), math.nan)
    step = int(axis) if axis.is_integer() else int(values.get("_step", step))
    shown = {usual_name(name): found for name, found in values.items() if name not in _OWN}
    yield Point(step, usual_time(values.get("_timestamp")), shown)


def _item(message: bytes) -> tuple[str, Any]:
    """The name and the value of an item of history or settings."""
    name: list[str] = []
    found: Any = None
    for number, value in fields(message):
        if number in (1, 2):
            name.append(text(value))
        elif number == 4:
            found = bool(value)
        elif number == 5:  # written with its sign in the last bit
            whole = signed(value)
            found = (whole >> 1) ^ -(whole & 1)
        elif number == 6:
            found = value
        elif number in (8, 16):
            found = json.loads(text(value))
    return "/".join(name), found


def _take(source: Source, axes: set[str], number: int, message: bytes) -> None:
    """Settings, an axis, or how the run ended."""
    for at, value in fields(message):
        if number == _METRIC and at == 4:
            axes.add(text(value))
        elif number == _EXIT and at == 1:
            source.failed = value != 0
        elif number == _RUN and at in (3, 8):
            source.settings["project" if at == 3 else "name"] = text(value)
        elif number == _RUN and at == 4:
            _take(source, axes, _CONFIG, inner(value))
        elif number == _CONFIG and at == 1:
            name, found = _item(inner(value))
            if name not in _OWN:
                source.settings[name] = found
