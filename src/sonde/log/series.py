"""Metrics of a log as arrays, with the resume rule applied: one metric, fast, or all of them.

A million records take 1.0 to 1.5 s, or 11 ms once the run is indexed. The index is used for a run
directory that has one and was started only once. Otherwise the files are read: a block of lines is
decoded at once, and of a single metric only what is needed. A block that contains anything unusual,
such as another logger's lines, INFO or a damaged line, is read line by line (ten times as slow).
"""

from array import array
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from sonde.errors import DamagedFile
from sonde.log.backend import LOG, METADATA
from sonde.log.lines import LogFile, LogRecord, Source, find_log_files, run_directory
from sonde.log.resume import StepKey, logged_again, of_earlier_starts, start_of
from sonde.records.columns import Columns, Integers, Series, join_rows
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.reader import decode_block
from sonde.records.values import NO_STEP

_NOT_AN_OBJECT: Final = float | str | bool | list[Any] | None


def read_series(source: Source, metric: str, *, rank: int | None = None) -> Series:
    """Return the values of `metric`: of one rank, or the mean over all ranks at each step.

    ```python
    import sonde
    from sonde import JSONStreamBackend, Logger, Verbosity

    with Logger(JSONStreamBackend(Verbosity.DEFAULT, "log.json")) as logger:
        for step in (1, 2):
            logger.log(step=step, data={"loss": 4.5 / step})
    series = sonde.log.read_series("log.json", "loss")
    assert (series.values.tolist(), series.step_at(-1)) == ([4.5, 2.25], 2)
    ```
    """
    indexed = _from_index(source, metric, rank)
    if indexed is not None:
        return indexed
    return series_of(
        [read_columns(path, only=metric) for path in find_log_files(source)], metric, rank
    )


class RankColumns:
    """The LOG records of one rank in one file, in order. Read only after all were added."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.timestamps = array("d")
        """The timestamp of every row; 0 if it has none."""
        self.elapsed = array("d")
        """The elapsedtime of every row."""

    def series(self, metric: str) -> Series:
        """Return the numbers of a metric that were not superseded."""
        series = self.columns.series(metric)
        gone = self.superseded(metric)
        if not gone:
            return series
        kept = [row not in gone for row in self.columns.numbers(metric)[0].tolist()]
        return Series(steps=series.steps[kept], values=series.values[kept])

    def superseded(self, metric: str) -> set[int]:
        """Return the rows of a metric that the resume rule leaves out."""
        if self._is_straight:
            return set()
        rows, _ = self.columns.numbers(metric)
        if not self.gone and not goes_back(self.columns.steps_at(rows)):
            return set()
        standing = [row for row in rows.tolist() if row not in self.gone]
        again = logged_again([self._keys[row] for row in standing])
        return {*self.gone.intersection(rows.tolist()), *(standing[place] for place in again)}

    def all_superseded(self) -> set[int]:
        """Return the rows that the resume rule leaves out, wholly or in part."""
        return self.gone.union(*map(self.superseded, self.columns.names))

    @cached_property
    def gone(self) -> set[int]:
        """The rows that a later start of the logger superseded."""
        starts = np.frombuffer(self.timestamps) - np.frombuffer(self.elapsed)
        if not len(starts) or float(np.ptp(starts)) < 0.001:
            return set()
        times = list(self.timestamps)
        began = [
            start_of(time or None, elapsed)
            for time, elapsed in zip(times, self.elapsed, strict=True)
        ]
        return of_earlier_starts(self._keys, began, times)

    @cached_property
    def _is_straight(self) -> bool:
        return not self.gone and not goes_back(self.columns.steps)

    @cached_property
    def _keys(self) -> list[StepKey | None]:
        keys: list[StepKey | None] = []
        for is_list, row in zip(self.columns.is_list, self.columns.steps.tolist(), strict=True):
            numbers = tuple(number for number in row if number != NO_STEP)
            keys.append((bool(is_list), numbers) if numbers else None)
        return keys


class LogColumns:
    """The columns of every rank in a file, and other findings. With `only`, the numbers of this
    metric only.
    """

    def __init__(self, *, only: str | None = None) -> None:
        self.by_rank: dict[int, RankColumns] = {}
        self.num_records = 0
        self.num_bad = 0
        self.num_lost = 0
        self.metadata: list[LogRecord] = []
        self.times: list[float] = []
        """Timestamps of some records, including the earliest and the latest of each block."""
        self.last: Any = None
        """The step of the last LOG record with a numeric step."""
        self._only = only
        self._decoder = _line_decoder(only)

    def add_block(self, block: bytes, rank: int) -> bool:
        """Decode a block at once. Return False and add nothing if it contains anything but our own
        plain lines.
        """
        lines = decode_block(self._decoder, block)
        if lines is None or len({line.rank for line in lines}) != 1:
            return False
        written = lines[0].rank
        columns = self._grow(rank if written is None else written, lines)
        steps = [line.step for line in lines]
        if self._only is None:
            columns.add(steps, [line.data for line in lines], decoded=False)
        else:
            columns.add_metric(steps, self._only, [line.data.value for line in lines])
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
            data = [record.data for record in found]
            if self._only is not None:
                wanted = {self._only, self._only.partition(".")[0]}
                data = [{name: values[name] for name in wanted & values.keys()} for values in data]
            self._grow(rank, found).add([record.step for record in found], data, decoded=True)
        self._note(records)

    def _grow(self, rank: int, lines: list[Any]) -> Columns:
        """Add the times of these lines of a rank; return its columns."""
        found = self.by_rank.setdefault(rank, RankColumns())
        found.timestamps.extend([line.timestamp or 0.0 for line in lines])
        found.elapsed.extend([line.elapsedtime or 0.0 for line in lines])
        return found.columns

    def _note(self, lines: list[Any]) -> None:
        self.num_records += len(lines)
        self.times += [line.timestamp for line in (*lines[:1], *lines[-1:]) if line.timestamp]
        for line in reversed(lines):
            if line.type == LOG and isinstance(line.step, (int, list)) and line.step != []:
                self.last = line.step
                break


def read_columns(path: Path, *, only: str | None = None) -> LogColumns:
    """Read the numbers of a file: of all metrics, or of one only."""
    columns = LogColumns(only=only)
    file = LogFile(path)
    for block in file.blocks():
        if not columns.add_block(block, file.rank):
            columns.add(file.records(block))
    columns.num_bad = file.scanner.num_bad
    columns.num_lost = file.num_lost
    return columns


def series_of(files: Sequence[LogColumns], metric: str, rank: int | None = None) -> Series:
    """Return a metric over several files: of one rank, or the mean over all ranks at each step."""
    parts = []
    for file in files:
        for number, columns in file.by_rank.items():
            if rank in (None, number):
                parts.append((number, columns.series(metric)))
    return mean_over_ranks(parts)


def mean_over_ranks(parts: Sequence[tuple[int, Series]]) -> Series:
    """Return the mean over ranks at each step, ordered by step; what only one rank has is returned
    in order.
    """
    found = [series for _, series in parts if len(series)]
    if not found:
        return Series(steps=np.empty(0, np.int64), values=np.empty(0))
    steps = join_rows([series.steps.reshape(len(series), -1) for series in found])
    steps = steps if any(series.steps.ndim > 1 for series in found) else steps[:, 0]
    values = np.concatenate([series.values for series in found])
    if len({rank for rank, series in parts if len(series)}) == 1:
        return Series(steps=steps, values=values)
    steps, where = np.unique(steps, axis=0, return_inverse=True)
    where = where.reshape(-1)
    return Series(steps=steps, values=np.bincount(where, weights=values) / np.bincount(where))


def goes_back(steps: Integers) -> bool:
    """Return whether any step is lower than the previous one, ignoring names. True if steps have
    several shapes.
    """
    rows = steps.reshape(len(steps), -1 if len(steps) else 1)
    rows = rows[rows[:, 0] != NO_STEP]
    if len(rows) < 2:
        return False
    if np.any(rows == NO_STEP):
        return True
    change = np.diff(rows, axis=0)
    first = np.argmax(change != 0, axis=1)
    return bool(np.any(np.take_along_axis(change, first[:, None], axis=1) < 0))


def _from_index(source: Source, metric: str, rank: int | None) -> Series | None:
    """Return the series from the run's index; None if there is no index or records may have been
    superseded.
    """
    run = run_directory(source)
    if run is None or not RunLayout(run).index.exists():
        return None
    try:
        if read_manifest(run).num_starts != 1:
            return None
    except DamagedFile:
        return None
    ranks = [file.rank for file in RunLayout(run).record_files("log")] if rank is None else [rank]
    with RunIndex(RunLayout(run)) as index:
        index.refresh()
        found = [(number, index.series(metric, rank=number)) for number in ranks]
    if any(goes_back(series.steps) for _, series in found):
        return None
    return mean_over_ranks(found)


def _line_decoder(only: str | None) -> "msgspec.json.Decoder[Any]":
    """Return a decoder for LOG lines: step, times, rank, and all data or one metric only."""
    data: Any = dict[str, Any]
    if only is not None:
        fields: list[Any] = [("value", Any, None)]
        # The metric may also be nested in an object, which is left to the slow path.
        if "." in only:
            fields.append(("parent", _NOT_AN_OBJECT, None))
        data = msgspec.defstruct(
            "Data", fields, rename={"value": only, "parent": only.partition(".")[0]}, gc=False
        )
    line: list[Any] = [
        ("type", Literal["LOG"]),
        ("data", data),
        ("step", int | list[int] | str | None),
        ("timestamp", float, 0.0),
        ("elapsedtime", float, 0.0),
        ("rank", int | None, None),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Line", line, gc=False))
