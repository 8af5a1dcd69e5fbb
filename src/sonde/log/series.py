"""One metric as arrays, fast: a million records in 1.0 to 1.5 s, 11 ms once the run is indexed.

The resume rule is applied. For a run directory that has an index, and was started once, the index answers; otherwise the
files are read, decoding only what is needed of them (columns.py).
"""

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from sonde.errors import DamagedFile
from sonde.log.backend import LOG
from sonde.log.columns import Columns, read_columns
from sonde.log.files import Source, find_log_files, rank_in_name, run_directory
from sonde.log.record import LogRecord
from sonde.log.resume import drop_superseded
from sonde.log.steps import step_numbers
from sonde.records.index import RunIndex
from sonde.records.index_chunk import NO_STEP
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.values import as_number

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Series:
    """The values of one metric, in order."""

    steps: Integers
    """A number for each value; where any step is a list, a row for each value (epoch, iteration, validation iteration),
    padded with NO_STEP, which also stands for what is no number."""
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    @property
    def iterations(self) -> Integers:
        """One number a value: the step, or the iteration of a list, or the epoch of one without; NO_STEP for none."""
        if self.steps.ndim == 1:
            return self.steps
        if self.steps.shape[1] == 1:
            return self.steps[:, 0]
        return np.where(self.steps[:, 1] == NO_STEP, self.steps[:, 0], self.steps[:, 1])

    def step_at(self, position: int) -> int | list[int] | None:
        """The step of one value, as it was logged; None when it had no numbers."""
        numbers: list[int] = [number for number in np.atleast_1d(self.steps[position]).tolist() if number != NO_STEP]
        if self.steps.ndim == 1:
            return numbers[0] if numbers else None
        return numbers or None


def read_series(source: Source, metric: str, *, rank: int | None = None) -> Series:
    """The values of `metric`: of one rank, or the mean over all ranks at each step."""
    indexed = _from_index(source, metric, rank)
    if indexed is not None:
        return indexed
    by_rank: dict[int, list[Series]] = {}
    for path in find_log_files(source):
        for number, columns in read_columns(path, metric, rank=rank_in_name(path)).items():
            if rank in (None, number):
                by_rank.setdefault(number, []).append(_from_columns(columns))
    return mean_over_ranks([_joined(parts) for _, parts in sorted(by_rank.items())])


def series_of(records: Sequence[LogRecord], metric: str) -> Series:
    """The same from records of one rank to which the resume rule has been applied."""
    steps, values = [], []
    for record in records:
        value = record.data.get(metric) if record.type == LOG and isinstance(record.data, dict) else None
        number = None if isinstance(value, str) else as_number(value)
        if number is not None:
            steps.append(record.step)
            values.append(number)
    return Series(steps=_step_array(steps), values=np.array(values, np.float64))


def mean_over_ranks(parts: Sequence[Series]) -> Series:
    """The mean at each step of what the ranks have there, in the order of the steps; one rank alone is left as it is."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else Series(steps=np.empty(0, np.int64), values=np.empty(0))
    joined = _joined(parts)
    steps, where = np.unique(joined.steps, axis=0, return_inverse=True)
    where = where.reshape(-1)
    return Series(steps=steps, values=np.bincount(where, weights=joined.values) / np.bincount(where))


def _from_index(source: Source, metric: str, rank: int | None) -> Series | None:
    """The answer of the run's index; None where it has none, or where records may have been superseded."""
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
        found = [index.series(metric, rank=one) for one in ranks]
    if any(_goes_back(one.steps) for one in found):
        return None
    return mean_over_ranks([Series(steps=one.steps, values=one.values) for one in found])


def _from_columns(columns: Columns) -> Series:
    if not columns.steps:
        return Series(steps=np.empty(0, np.int64), values=np.empty(0))
    try:
        # The common case: a number in every record. An array takes a list of nothing but numbers, fast, and refuses others.
        series = Series(steps=_step_array(columns.steps), values=np.frombuffer(array("d", columns.values), np.float64))
        numbers: list[float | None] = columns.values
    except (TypeError, OverflowError):
        numbers = columns.numbers()
        present = [number is not None for number in numbers]
        series = Series(
            steps=_step_array(list(itertools.compress(columns.steps, present))),
            values=np.array(list(itertools.compress(numbers, present)), np.float64),
        )
    if columns.has_one_start() and not _goes_back(series.steps):
        return series
    times = [(timestamp, elapsedtime) for num, timestamp, elapsedtime in columns.times for _ in range(num)]
    records = [
        LogRecord(
            type=LOG,
            step=step,
            data={} if value is None else {"value": value},
            timestamp=timestamp or None,
            elapsedtime=elapsedtime,
        )
        for step, value, (timestamp, elapsedtime) in zip(columns.steps, numbers, times, strict=True)
    ]
    return series_of(drop_superseded(records)[0], "value")


def _step_array(steps: list[Any]) -> Integers:
    """Steps as an array: plain numbers as they are, lists as rows, padded."""
    if not steps:
        return np.empty(0, np.int64)
    try:
        return np.frombuffer(array("q", steps), np.int64)  # three times as fast as numpy's own way
    except (TypeError, OverflowError):
        pass
    lengths = {len(step) for step in steps} if set(map(type, steps)) == {list} else set()
    if len(lengths) == 1 and lengths <= {1, 2, 3}:
        try:
            return np.array(steps, np.int64)
        except (TypeError, ValueError, OverflowError):  # not all of them numbers, or numbers beyond 64 bits
            pass
    rows = [[_within_64_bits(number) for number in (step_numbers(step) or ())[:3]] for step in steps]
    width = max([1, *map(len, rows)])
    return np.array([row + [NO_STEP] * (width - len(row)) for row in rows], np.int64)


def _within_64_bits(number: int) -> int:
    return number if -(2**63) < number < 2**63 else NO_STEP


def _joined(parts: Sequence[Series]) -> Series:
    if len(parts) == 1:
        return parts[0]
    width = max(1 if part.steps.ndim == 1 else part.steps.shape[1] for part in parts)
    if width == 1:
        rows = [part.steps.reshape(-1) for part in parts]
    else:
        rows = [_widened(part.steps.reshape(len(part), -1), width) for part in parts]
    return Series(steps=np.concatenate(rows), values=np.concatenate([part.values for part in parts]))


def _widened(steps: Integers, width: int) -> Integers:
    return np.pad(steps, ((0, 0), (0, width - steps.shape[1])), constant_values=NO_STEP)


def _goes_back(steps: Integers) -> bool:
    """Is any step before the one above it? Careful: True where it cannot be told (steps of several shapes)."""
    if len(steps) < 2:
        return False
    if steps.ndim == 1:
        return bool(np.any(np.diff(steps) < 0) or np.any(steps == NO_STEP))
    if np.any(steps == NO_STEP):
        return True
    change = np.diff(steps, axis=0)
    first = np.argmax(change != 0, axis=1)
    return bool(np.any(np.take_along_axis(change, first[:, None], axis=1) < 0))
