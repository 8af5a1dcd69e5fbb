"""One metric out of a log file as columns, decoding of each line only what is needed.

A block of lines is decoded at once into typed structs (0.8 µs a line of ten numbers); a block that holds anything unusual,
such as another logger's lines, INFO or a damaged line, is read line by line (about 5 µs each).
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

_BLOCK_BYTES: Final = 1 << 18
"""Small enough to stay in the processor's cache between reading and decoding."""
_NON_FINITE: Final = frozenset(("NaN", "Infinity", "-Infinity"))

_Decoder: TypeAlias = msgspec.json.Decoder[Any]


@final
@dataclass(slots=True)
class Columns:
    """The LOG records of one rank in one file, in order; `values` has None where a record has not this metric."""

    steps: list[Any] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    timestamps: list[float] = field(default_factory=list)
    elapsedtimes: list[float] = field(default_factory=list)

    def add(self, record: LogRecord, metric: str) -> None:
        """Take one record that was read whole."""
        if record.type != LOG or not isinstance(record.data, dict):
            return
        self.steps.append(record.step)
        self.values.append(as_number(record.data.get(metric)))
        self.timestamps.append(record.timestamp or 0.0)
        self.elapsedtimes.append(record.elapsedtime or 0.0)

    def add_times(self, lines: list[Any]) -> None:
        """Take the times of a block of lines. They are only used to tell one start of the logger from the next, and a
        block that ends in the start it began with holds no new one: then the last line's times stand for all."""
        first, last = lines[0], lines[-1]
        if abs((first.timestamp - first.elapsedtime) - (last.timestamp - last.elapsedtime)) < 0.001:
            self.timestamps += [last.timestamp] * len(lines)
            self.elapsedtimes += [last.elapsedtime] * len(lines)
        else:
            self.timestamps += [line.timestamp for line in lines]
            self.elapsedtimes += [line.elapsedtime for line in lines]


def read_columns(path: Path, metric: str, *, rank: int) -> dict[int, Columns]:
    """The columns of every rank in the file; `rank` is for lines that do not say theirs."""
    decoder = _line_decoder(metric, rank)
    by_rank: dict[int, Columns] = {}
    with path.open("rb") as file:
        for block in _blocks(file):
            if not _add_block(by_rank, decoder, block):
                _add_lines(by_rank, block, metric, rank)
    return by_rank


def as_number(value: object) -> float | None:
    """A value as a number, if it is one."""
    if isinstance(value, (int, float)) or (isinstance(value, str) and value in _NON_FINITE):
        try:
            return float(value)
        except OverflowError:
            return None
    return None


def _line_decoder(metric: str, rank: int) -> _Decoder:
    """Decodes of a line its step, its times, its rank and the one value. What has no step is no LOG record."""
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


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks of whole lines; a last line without a newline counts as one."""
    pending = b""
    while block := file.read(_BLOCK_BYTES):
        end = block.rfind(b"\n") + 1
        if not end:
            pending += block
            continue
        yield pending + block[:end]
        pending = block[end:]
    if pending:
        yield pending


def _add_block(by_rank: dict[int, Columns], decoder: _Decoder, block: bytes) -> bool:
    """Decode a block at once; False, and nothing added, when it holds anything but our own plain lines."""
    try:
        lines = decoder.decode_lines(block)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    lines = [line for line in lines if line.step is not UNSET and line.data is not UNSET]
    ranks = {line.rank for line in lines}
    if len(ranks) > 1:
        return False
    values = [line.data.value for line in lines]
    if not {float}.issuperset(map(type, values)):
        values = [None if value is UNSET else as_number(value) for value in values]
    for rank in ranks:
        columns = by_rank.setdefault(rank, Columns())
        columns.steps += [line.step for line in lines]
        columns.values += values
        columns.add_times(lines)
    return True


def _add_lines(by_rank: dict[int, Columns], block: bytes, metric: str, rank: int) -> None:
    for line in block.split(b"\n"):
        try:
            record = parse_log_line(line.strip(b"\0\xef\xbb\xbf \r\t"), rank=rank)
        except ValueError:
            continue
        if isinstance(record, LogRecord):
            by_rank.setdefault(record.rank, Columns()).add(record, metric)
