"""One metric out of a log file as columns, decoding of each line only what is needed.

A block of lines is decoded at once into typed structs (0.8 µs a line of ten numbers); a block that holds anything unusual,
such as another logger's lines, INFO or a damaged line, is read line by line (ten times as slow).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, final

import msgspec
from msgspec import UNSET, UnsetType

from sonde.log.backend import LOG
from sonde.log.lines import parse_log_line
from sonde.log.record import LogRecord
from sonde.records.files import open_regular
from sonde.records.seal import are_intact
from sonde.records.values import as_number

_BLOCK_BYTES: Final = 1 << 18
"""Small enough to stay in the processor's cache between reading and decoding."""

_MAX_LINE_BYTES: Final = 1 << 26

_Decoder: TypeAlias = msgspec.json.Decoder[Any]


@final
@dataclass(slots=True)
class Columns:
    """The LOG records of one rank in one file, in order."""

    steps: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    """As decoded: anything where a value is no number or not there; `numbers` makes None of that."""
    times: list[tuple[int, float, float]] = field(default_factory=list)
    """How many records in a row, and the timestamp and elapsedtime of the last of them, which stand for all: they only
    serve to tell one start of the logger from the next, and all of them are of one start."""

    def add(self, record: LogRecord, metric: str) -> None:
        """Take one record that was read whole."""
        if record.type == LOG and isinstance(record.data, dict):
            self.steps.append(record.step)
            value = record.data.get(metric)
            self.values.append(None if isinstance(value, str) else value)  # a text, even if it is "NaN"
            self.times.append((1, record.timestamp or 0.0, record.elapsedtime or 0.0))

    def add_times(self, lines: list[Any]) -> None:
        """Take the times of a block of lines. One that ends in the start it began with holds no other that matters: a new
        start of a run begins after the last record of the one before."""
        first, last = lines[0], lines[-1]
        if abs((first.timestamp - first.elapsedtime) - (last.timestamp - last.elapsedtime)) < 0.001:
            self.times.append((len(lines), last.timestamp, last.elapsedtime))
        else:
            self.times += [(1, line.timestamp, line.elapsedtime) for line in lines]

    def numbers(self) -> list[float | None]:
        """The values, None where a record has not this metric or it is no number."""
        return [as_number(value) for value in self.values]

    def has_one_start(self) -> bool:
        """Were all records written by the same start of the logger?"""
        starts = [timestamp - elapsedtime for _, timestamp, elapsedtime in self.times]
        return max(starts) - min(starts) < 0.001


def read_columns(path: Path, metric: str, *, rank: int) -> dict[int, Columns]:
    """The columns of every rank in the file; `rank` is for lines that do not say theirs."""
    decoder = _line_decoder(metric, rank)
    by_rank: dict[int, Columns] = {}
    with open_regular(path, follow=True) as file:
        for block in _blocks(file):
            if not _add_block(by_rank, decoder, block):
                _add_lines(by_rank, block, metric, rank)
    return by_rank


def _line_decoder(metric: str, rank: int) -> _Decoder:
    """Decodes of a line its step, its times, its rank and the one value: ours always has a step if it is a LOG record."""
    value = float | str | bool | None | UnsetType
    data = msgspec.defstruct("Data", [("value", value, UNSET)], rename={"value": metric}, gc=False)
    line = msgspec.defstruct(
        "Line",
        [
            ("data", data | UnsetType, UNSET),
            ("step", int | list[int] | str | None | UnsetType, UNSET),
            ("timestamp", float, 0.0),
            ("elapsedtime", float, 0.0),
            ("rank", int, rank),
        ],
        gc=False,
    )
    return msgspec.json.Decoder(line)


def _blocks(file: BinaryIO) -> Iterator[memoryview]:
    """The file in blocks of whole lines, a last line without a newline among them; each is valid until the next is asked
    for. One buffer serves for all: copying the bytes around would cost a tenth of the whole reading."""
    buffer = bytearray(_BLOCK_BYTES)
    num_pending = 0
    while True:
        view = memoryview(buffer)
        num_read = file.readinto(view[num_pending:])  # type: ignore[attr-defined]  # every binary file has it; BinaryIO does not say so
        filled = num_pending + num_read
        if not num_read:
            if filled:
                yield view[:filled]
            return
        end = buffer.rfind(b"\n", 0, filled) + 1
        if end:
            yield view[:end]
        num_pending = filled - end
        if num_pending == len(buffer) >= _MAX_LINE_BYTES:  # no record of ours: pass over it, without holding it
            block = b""
            while b"\n" not in block and (block := file.read(_BLOCK_BYTES)):
                pass
            rest = block.partition(b"\n")[2]
            buffer = bytearray(_BLOCK_BYTES)
            buffer[: len(rest)], num_pending = rest, len(rest)
            continue
        if num_pending == len(buffer):  # a line longer than the buffer
            buffer = bytearray(2 * len(buffer))
        buffer[:num_pending] = view[end:filled]


def _add_block(by_rank: dict[int, Columns], decoder: _Decoder, block: memoryview) -> bool:
    """Decode a block at once; False, and nothing added, when it holds anything but our own plain lines."""
    try:
        lines = decoder.decode_lines(block)
        if not are_intact(bytes(block).rstrip(b"\n").split(b"\n")):
            return False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    without_step = [line for line in lines if line.step is UNSET]
    if without_step:
        if any(line.data is not UNSET for line in without_step):
            return False  # INFO, or a LOG record without a step: only its type tells
        lines = [line for line in lines if line.step is not UNSET]
    try:
        values = [line.data.value for line in lines]
    except AttributeError:  # a LOG record without data
        return False
    ranks = {line.rank for line in lines}
    if len(ranks) > 1:
        return False
    for rank in ranks:
        columns = by_rank.setdefault(rank, Columns())
        columns.steps += [line.step for line in lines]
        columns.values += values
        columns.add_times(lines)
    return True


def _add_lines(by_rank: dict[int, Columns], block: memoryview, metric: str, rank: int) -> None:
    for line in bytes(block).split(b"\n"):
        try:
            record = parse_log_line(line.strip(b"\0\xef\xbb\xbf \r\t"), rank=rank)
        except ValueError:
            continue
        if isinstance(record, LogRecord):
            by_rank.setdefault(record.rank, Columns()).add(record, metric)
