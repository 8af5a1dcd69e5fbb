"""The numbers of a log file as columns: for one metric, or for all.

A block of lines is decoded at once into typed structs (for ten numbers per line, 0.8 µs per line for one metric, 2 µs
for all). A block that contains anything unusual, such as another logger's lines, INFO, a new name or a damaged line, is
read line by line (ten times as slow). A value takes 12 bytes of memory, plus 8 per record.
"""

from array import array
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias, final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from sonde.log.backend import LOG, METADATA
from sonde.log.files import rank_in_name
from sonde.log.lines import LogRecord, parse_log_line
from sonde.log.steps import step_numbers
from sonde.records.files import open_regular, seek_data
from sonde.records.index_chunk import NO_STEP
from sonde.records.reader import MAX_LINE_BYTES
from sonde.records.seal import are_intact
from sonde.records.values import as_number

_BLOCK_BYTES: Final = 1 << 18
"""Small enough to stay in the processor's cache between reading and decoding."""
_MAX_NAMES: Final = 256
"""With more metrics than this, lines are read one by one."""

_NEWLINE: Final = ord("\n")
_STEP: Final = attrgetter("step")
_RANK: Final = attrgetter("rank")

_Decoder: TypeAlias = msgspec.json.Decoder[Any]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@final
class Columns:
    """The LOG records of one rank in one file, in order. Read steps and starts only after all have been added."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.metrics: dict[str, tuple[array[int], array[float]]] = {}
        """For each metric, the rows that have a number, and the numbers."""
        self.times: list[tuple[int, float, float]] = []
        """Number of consecutive records, with timestamp and elapsedtime of the last one, which represents all of them.
        The times only serve to tell one start of the logger from the next, and these records belong to one start."""
        self._steps: list[Integers] = []

    def add_block(self, lines: list[Any], names: list[str]) -> None:
        """Add lines as `_line_decoder` returns them."""
        rows = range(self.num_rows, self.num_rows + len(lines))
        row_bytes = np.arange(rows.start, rows.stop, dtype=np.int32).tobytes()
        for place, name in enumerate(names):
            found = list(map(attrgetter(f"data.f{place}"), lines))
            where, numbers = self._metric(name)
            try:
                # The common case: a number in every record. `array` accepts a list of numbers only.
                numbers.frombytes(array("d", found).tobytes())
                where.frombytes(row_bytes)
            except TypeError:
                for row, value in zip(rows, found, strict=True):
                    if value is not UNSET and (number := as_number(value)) is not None:
                        where.append(row)
                        numbers.append(number)
        self._add_steps(list(map(_STEP, lines)))
        self._add_times(lines)

    def add_records(self, records: list[LogRecord], only: str | None) -> None:
        """Add records that were parsed completely."""
        for row, record in enumerate(records, self.num_rows):
            for name in record.data if only is None else record.data.keys() & {only}:
                value = record.data[name]
                number = None if isinstance(value, str) else as_number(value)  # text, even if it is "NaN"
                if number is not None:
                    where, numbers = self._metric(name)
                    where.append(row)
                    numbers.append(number)
        self._add_steps([record.step for record in records])
        self.times += [(1, record.timestamp or 0.0, record.elapsedtime or 0.0) for record in records]

    @cached_property
    def steps(self) -> Integers:
        """The step of every row: one number each, or rows of up to three, padded with NO_STEP."""
        return join_steps(self._steps)

    def logged_steps(self) -> list[Any]:
        """Return the step of every row as it was logged; None for names."""
        found: list[Any] = []
        for part in self._steps:
            if part.ndim == 1:
                found += [None if number == NO_STEP else number for number in part.tolist()]
            else:
                found += [[number for number in row if number != NO_STEP] for row in part.tolist()]
        return found

    @cached_property
    def has_one_start(self) -> bool:
        """True if all records were written by the same start of the logger."""
        starts = [timestamp - elapsedtime for _, timestamp, elapsedtime in self.times]
        return not starts or max(starts) - min(starts) < 0.001

    def _metric(self, name: str) -> tuple["array[int]", "array[float]"]:
        found = self.metrics.get(name)
        if found is None:
            found = self.metrics[name] = array("i"), array("d")
        return found

    def _add_steps(self, steps: list[Any]) -> None:
        self.num_rows += len(steps)
        kinds = set(map(type, steps))
        # Numbers and lists are kept apart: they do not compare, so it must stay known which is which.
        groups = [steps] if len(kinds) == 1 else [list(group) for _, group in groupby(steps, _is_list)]
        self._steps += map(step_array, groups)

    def _add_times(self, lines: list[Any]) -> None:
        """Add the times of a block.

        If a block ends in the start it began with, no other start in it matters: a new start of a run begins after the
        last record of the previous one.
        """
        first, last = lines[0], lines[-1]
        if abs((first.timestamp - first.elapsedtime) - (last.timestamp - last.elapsedtime)) < 0.001:
            self.times.append((len(lines), last.timestamp, last.elapsedtime))
        else:
            self.times += [(1, line.timestamp, line.elapsedtime) for line in lines]


@final
class LogColumns:
    """The contents of one file: the columns of every rank in it, and other findings."""

    def __init__(self, path: Path, *, only: str | None = None) -> None:
        """With `only`, read the numbers of this metric only."""
        self.by_rank: dict[int, Columns] = {}
        self.num_records = 0
        self.num_bad = 0
        self.num_lost = 0
        self.metadata: list[LogRecord] = []
        self.times: list[float] = []
        """Timestamps of some records, including the earliest and the latest of each block."""
        self.last: Any = None
        """The step of the last LOG record with a numeric step."""
        self.has_times = True
        """True if every record has a timestamp."""
        self._rank = rank_in_name(path)
        self._only = only
        self._names = [] if only is None else [only]
        self._decoder = _line_decoder(self._names, self._rank, only is None)
        with open_regular(path, follow=True) as file:
            for block in self._blocks(file):
                if not self._add_block(block):
                    self._add_lines(block)

    def _blocks(self, file: BinaryIO) -> Iterator[memoryview]:
        """Yield the file in blocks of whole lines, including a last line without a newline.

        Each block is valid until the next one is requested. All share one buffer, because copying the bytes would cost
        a tenth of the reading time.
        """
        buffer = bytearray(_BLOCK_BYTES)
        num_pending = 0
        while True:
            view = memoryview(buffer)
            num_read = file.readinto(view[num_pending:]) or 0  # type: ignore[attr-defined]  # None: a file in /proc has no data now
            filled = num_pending + num_read
            if not num_read:
                if filled:
                    yield view[:filled]
                return
            end = buffer.rfind(b"\n", 0, filled) + 1
            if end:
                yield view[:end]
            num_pending = filled - end
            if (
                num_pending == len(buffer) >= MAX_LINE_BYTES
            ):  # not a record of ours: skip it without keeping it in memory
                self.num_bad += 1
                block = b""
                while b"\n" not in block:
                    seek_data(file, file.tell())
                    if not (block := file.read(_BLOCK_BYTES)):
                        break
                rest = block.partition(b"\n")[2]
                buffer = bytearray(_BLOCK_BYTES)
                buffer[: len(rest)], num_pending = rest, len(rest)
                continue
            if num_pending == len(buffer):  # a line longer than the buffer
                buffer = bytearray(2 * len(buffer))
            buffer[:num_pending] = view[end:filled]

    def _add_block(self, block: memoryview) -> bool:
        """Decode a block at once. Return False and add nothing if it contains anything but our own plain lines."""
        try:
            lines = self._decoder.decode_lines(block)
            if not are_intact(bytes(block[:-1] if block[-1] == _NEWLINE else block).split(b"\n")):
                return False
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        ranks = set(map(_RANK, lines))
        if len(ranks) != 1:
            return False
        self.by_rank.setdefault(ranks.pop(), Columns()).add_block(lines, self._names)
        self.num_records += len(lines)
        self._note(lines)
        return True

    def _add_lines(self, block: memoryview) -> None:
        by_rank: dict[int, list[LogRecord]] = {}
        for line in bytes(block).split(b"\n"):
            cleaned = line.strip(b"\xef\xbb\xbf \r\t\0")
            self.num_bad += line.startswith(b"\0") or line.endswith(b"\0")
            if not cleaned:
                continue
            try:
                record = parse_log_line(cleaned, rank=self._rank)
            except ValueError:
                self.num_bad += 1
                continue
            if isinstance(record, int):
                self.num_lost += record
                continue
            self.num_records += 1
            self._note([record])
            if record.type == LOG and isinstance(record.data, dict):
                by_rank.setdefault(record.rank, []).append(record)
            elif record.type == METADATA:
                self.metadata.append(record)
        for rank, records in by_rank.items():
            self.by_rank.setdefault(rank, Columns()).add_records(records, self._only)
        if self._only is None:
            self._learn(name for records in by_rank.values() for record in records for name in record.data)

    def _learn(self, names: Iterator[str]) -> None:
        """Decode these newly seen metrics in blocks from now on."""
        new = [name for name in dict.fromkeys(names) if name.isprintable() and name not in self._names]
        if new and len(self._names) + len(new) <= _MAX_NAMES:
            self._names += new
            self._decoder = _line_decoder(self._names, self._rank, True)

    def _note(self, lines: list[Any]) -> None:
        times = [line.timestamp for line in (lines[0], lines[-1])]
        self.has_times = self.has_times and all(times)
        self.times += [time for time in times if time]
        for line in reversed(lines):
            if line.type == LOG and isinstance(line.step, (int, list)) and line.step != []:
                self.last = line.step
                break


def _line_decoder(names: list[str], rank: int, is_strict: bool) -> _Decoder:
    """Return a decoder for LOG lines: step, times, rank and these metrics; if strict, no others are allowed."""
    value = float | str | bool | None | UnsetType
    fields = [(f"f{place}", value, UNSET) for place in range(len(names))]
    rename = {f"f{place}": name for place, name in enumerate(names)}
    data = msgspec.defstruct("Data", fields, rename=rename, gc=False, forbid_unknown_fields=is_strict)
    line = msgspec.defstruct(
        "Line",
        [
            ("type", Literal["LOG"]),
            ("data", data),
            ("step", int | list[int] | str | None),
            ("timestamp", float, 0.0),
            ("elapsedtime", float, 0.0),
            ("rank", int, rank),
        ],
        gc=False,
    )
    return msgspec.json.Decoder(line)


def step_array(steps: list[Any]) -> Integers:
    """Return steps as an array: plain numbers as they are, lists as padded rows."""
    if not steps:
        return np.empty(0, np.int64)
    try:
        return np.frombuffer(array("q", steps), np.int64)  # three times as fast as np.array
    except (TypeError, OverflowError):
        pass
    lengths = {len(step) for step in steps} if set(map(type, steps)) == {list} else set()
    if len(lengths) == 1 and lengths <= {1, 2, 3}:
        try:
            return np.array(steps, np.int64)
        except (TypeError, ValueError, OverflowError):  # not all of them are numbers, or some exceed 64 bits
            pass
    rows = [[_within_64_bits(number) for number in (step_numbers(step) or ())[:3]] for step in steps]
    width = max([1, *map(len, rows)])
    padded = np.array([row + [NO_STEP] * (width - len(row)) for row in rows], np.int64)
    return padded if any(map(_is_list, steps)) else padded[:, 0]


def join_steps(parts: list[Integers]) -> Integers:
    """Concatenate steps, padded to the widest."""
    if not parts:
        return np.empty(0, np.int64)
    width = max(1 if part.ndim == 1 else part.shape[1] for part in parts)
    if width == 1:
        return np.concatenate([part.reshape(-1) for part in parts])
    rows = [part.reshape(len(part), -1) for part in parts]
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=NO_STEP) for part in rows]
    )


def _is_list(step: object) -> bool:
    return isinstance(step, (list, tuple))


def _within_64_bits(number: int) -> int:
    return number if -(2**63) < number < 2**63 else NO_STEP
