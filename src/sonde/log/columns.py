"""The numbers of a log file as columns: for one metric, or for all.

A block of lines is decoded at once into typed structs (for ten numbers per line, 0.8 µs per line for one metric, 2 µs
for all). A block that contains anything unusual, such as another logger's lines, INFO, a new name or a damaged line, is
read line by line (ten times as slow). A value takes 12 bytes of memory, plus 24 per record.
"""

from array import array
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from sonde.log.backend import LOG, METADATA
from sonde.log.lines import LogFile, LogRecord
from sonde.log.steps import step_numbers
from sonde.records.index import Series
from sonde.records.index_chunk import NO_STEP
from sonde.records.seal import are_intact
from sonde.records.values import as_number

_MAX_NAMES: Final = 256
"""With more metrics than this, lines are read one by one."""

_STEP: Final = attrgetter("step")
_TIMESTAMP: Final = attrgetter("timestamp")
_ELAPSED: Final = attrgetter("elapsedtime")
_RANK: Final = attrgetter("rank")

_Decoder: TypeAlias = msgspec.json.Decoder[Any]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Columns:
    """The LOG records of one rank in one file, in order. Read steps and starts only after all have been added."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.metrics: dict[str, tuple[array[int], array[float]]] = {}
        """For each metric, the rows that have a number, and the numbers."""
        self.timestamps = array("d")
        """The timestamp of every row; 0 if it has none."""
        self.elapsed = array("d")
        """The elapsedtime of every row."""
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
        self.timestamps.extend(map(_TIMESTAMP, lines))
        self.elapsed.extend(map(_ELAPSED, lines))

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
        self.timestamps.extend(record.timestamp or 0.0 for record in records)
        self.elapsed.extend(record.elapsedtime or 0.0 for record in records)

    def series(self, metric: str) -> Series:
        """Return the numbers of a metric as they were logged, superseded ones too."""
        rows, values = self.metrics.get(metric, (array("i"), array("d")))
        where: npt.NDArray[np.int32] = np.frombuffer(rows, np.int32)
        steps = self.steps if len(where) == self.num_rows else self.steps[where]
        return Series(steps=steps, values=np.frombuffer(values, np.float64))

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
        starts = np.frombuffer(self.timestamps) - np.frombuffer(self.elapsed)
        return not len(starts) or float(np.ptp(starts)) < 0.001

    def _metric(self, name: str) -> tuple["array[int]", "array[float]"]:
        return self.metrics.setdefault(name, (array("i"), array("d")))

    def _add_steps(self, steps: list[Any]) -> None:
        self.num_rows += len(steps)
        kinds = set(map(type, steps))
        # Numbers and lists are kept apart: they do not compare, so it must stay known which is which.
        groups = [steps] if len(kinds) == 1 else [list(group) for _, group in groupby(steps, _is_list)]
        self._steps += map(step_array, groups)


class LogColumns:
    """The columns of every rank in a file, and other findings. With `only`, the numbers of this metric only."""

    def __init__(self, *, only: str | None = None) -> None:
        self.by_rank: dict[int, Columns] = {}
        self.num_records = 0
        self.num_bad = 0
        self.num_lost = 0
        self.metadata: list[LogRecord] = []
        self.times: list[float] = []
        """Timestamps of some records, including the earliest and the latest of each block."""
        self.last: Any = None
        """The step of the last LOG record with a numeric step."""
        self._only = only
        self._names = [] if only is None else [only]
        self._decoder = _line_decoder(self._names, only is None)

    def add_block(self, block: bytes, rank: int) -> bool:
        """Decode a block at once. Return False and add nothing if it contains anything but our own plain lines."""
        try:
            lines = self._decoder.decode_lines(block)
            if not are_intact(block.split(b"\n")):
                return False
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        ranks = set(map(_RANK, lines))
        if len(ranks) != 1:
            return False
        written = ranks.pop()
        self.by_rank.setdefault(rank if written is None else written, Columns()).add_block(lines, self._names)
        self._note(lines)
        return True

    def add(self, records: list[LogRecord]) -> None:
        """Add records of any kind."""
        by_rank: dict[int, list[LogRecord]] = {}
        for record in records:
            if record.type == LOG and isinstance(record.data, dict):
                by_rank.setdefault(record.rank, []).append(record)
            elif record.type == METADATA:
                self.metadata.append(record)
        for rank, found in by_rank.items():
            self.by_rank.setdefault(rank, Columns()).add_records(found, self._only)
        if self._only is None:
            self._learn(name for found in by_rank.values() for record in found for name in record.data)
        self._note(records)

    def _learn(self, names: Iterator[str]) -> None:
        """Decode these newly seen metrics in blocks from now on."""
        new = [name for name in dict.fromkeys(names) if name.isprintable() and name not in self._names]
        if new and len(self._names) + len(new) <= _MAX_NAMES:
            self._names += new
            self._decoder = _line_decoder(self._names, True)

    def _note(self, lines: list[Any]) -> None:
        self.num_records += len(lines)
        self.times += [line.timestamp for line in (*lines[:1], *lines[-1:]) if line.timestamp]
        for line in reversed(lines):
            if line.type == LOG and isinstance(line.step, (int, list)) and line.step != []:
                self.last = line.step
                break


def read_columns(path: Path, *, only: str | None = None) -> LogColumns:
    """Read the numbers of a file: of all metrics, or of one only."""
    columns, file = LogColumns(only=only), LogFile(path)
    for block in file.blocks():
        if not columns.add_block(block, file.rank):
            columns.add(file.records(block))
    columns.num_bad, columns.num_lost = file.scanner.num_bad, file.num_lost
    return columns


def _line_decoder(names: list[str], is_strict: bool) -> _Decoder:
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
            ("rank", int | None, None),
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
