"""One metric as arrays, fast: a million records in 1.0 to 1.5 s, or 11 ms once the run is indexed.

The resume rule is applied. The index is used for a run directory that has one and was started only once; otherwise the
files are read, decoding only what is needed (columns.py).
"""

from collections.abc import Sequence

import numpy as np

from sonde.errors import DamagedFile
from sonde.log.backend import LOG
from sonde.log.columns import Columns, Integers, join_steps, read_columns
from sonde.log.files import Source, find_log_files, run_directory
from sonde.log.lines import LogRecord
from sonde.log.resume import drop_superseded
from sonde.records.index import RunIndex, Series
from sonde.records.index_chunk import NO_STEP
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest


def read_series(source: Source, metric: str, *, rank: int | None = None) -> Series:
    """Return the values of `metric`: of one rank, or the mean over all ranks at each step."""
    indexed = _from_index(source, metric, rank)
    if indexed is not None:
        return indexed
    by_rank: dict[int, list[Series]] = {}
    for path in find_log_files(source):
        for number, columns in read_columns(path, only=metric).by_rank.items():
            if rank in (None, number):
                by_rank.setdefault(number, []).append(series_of_columns(columns, metric))
    return mean_over_ranks([_joined(parts) for _, parts in sorted(by_rank.items())])


def mean_over_ranks(parts: Sequence[Series]) -> Series:
    """Return the mean over ranks at each step, ordered by step; a single rank is returned unchanged."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else Series(steps=np.empty(0, np.int64), values=np.empty(0))
    joined = _joined(parts)
    steps, where = np.unique(joined.steps, axis=0, return_inverse=True)
    where = where.reshape(-1)
    return Series(steps=steps, values=np.bincount(where, weights=joined.values) / np.bincount(where))


def _from_index(source: Source, metric: str, rank: int | None) -> Series | None:
    """Return the series from the run's index; None if there is no index or records may have been superseded."""
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
    if any(goes_back(one.steps) for one in found):
        return None
    return mean_over_ranks(found)


def series_of_columns(columns: Columns, metric: str) -> Series:
    """Return one metric of one rank, with the resume rule applied."""
    series = columns.series(metric)
    if columns.has_one_start and not goes_back(series.steps):
        return series
    numbers = dict(zip(*columns.metrics[metric], strict=True)) if metric in columns.metrics else {}
    rows = zip(columns.logged_steps(), columns.timestamps, columns.elapsed, strict=True)
    records = [
        LogRecord(
            type=LOG,
            step=step,
            data={metric: numbers[row]} if row in numbers else {},
            timestamp=timestamp or None,
            elapsedtime=elapsed,
        )
        for row, (step, timestamp, elapsed) in enumerate(rows)
    ]
    kept = Columns()
    kept.add_records(drop_superseded(records)[0], metric)
    return kept.series(metric)


def _joined(parts: Sequence[Series]) -> Series:
    if len(parts) == 1:
        return parts[0]
    return Series(
        steps=join_steps([part.steps for part in parts]), values=np.concatenate([part.values for part in parts])
    )


def goes_back(steps: Integers) -> bool:
    """Return whether any step is lower than the previous one, ignoring names. True if steps have several shapes."""
    rows = steps.reshape(len(steps), -1 if len(steps) else 1)
    rows = rows[rows[:, 0] != NO_STEP]
    if len(rows) < 2:
        return False
    if np.any(rows == NO_STEP):
        return True
    change = np.diff(rows, axis=0)
    first = np.argmax(change != 0, axis=1)
    return bool(np.any(np.take_along_axis(change, first[:, None], axis=1) < 0))
