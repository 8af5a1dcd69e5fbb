"""Summary of a log: the last value, the best by its GOAL, and the mean of each metric. Pure."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sonde.log.files import Source, find_log_files
from sonde.log.reading import metadata_of
from sonde.log.series import read_columns, series_of
from sonde.records.columns import Series

MINIMIZE: Final = "MINIMIZE"
MAXIMIZE: Final = "MAXIMIZE"


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricSummary:
    """One metric of one log, over all ranks."""

    metric: str
    unit: str
    goal: str | None
    """`MINIMIZE`, `MAXIMIZE`, or None if the log does not say."""
    stage: str | None
    num_values: int
    last: float
    last_step: Any
    best: float | None
    """The best finite value; None if there is no goal or no finite value."""
    best_step: Any
    mean: float
    """Mean of the finite values; NaN if there are none."""
    num_non_finite: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSummary:
    """The summary of one log."""

    num_records: int
    ranks: list[int]
    last_step: Any
    """The step of the last LOG record with a numeric step."""
    seconds: float | None
    """Seconds from the first record to the last; None if the log has no times."""
    num_superseded: int
    num_bad: int
    num_lost: int
    metrics: list[MetricSummary]
    """Every metric that has numbers, in order of first appearance."""
    metadata: dict[str, dict[str, Any]]


def summarise(source: Source) -> LogSummary:
    """Summarize a log: a file, a glob, a run directory, or a list of them. Costs 2 µs per record."""
    files = [read_columns(path) for path in find_log_files(source)]
    columns = [one for file in files for one in file.by_rank.values()]
    metadata = metadata_of(record for file in files for record in file.metadata)
    names = dict.fromkeys(name for one in columns for name in one.columns.names)
    series = ((name, series_of(files, name)) for name in names)
    times = [time for file in files for time in file.times]
    latest = max(files, key=lambda file: max(file.times, default=0.0))
    return LogSummary(
        num_records=sum(file.num_records for file in files),
        ranks=sorted({rank for file in files for rank in file.by_rank}),
        last_step=latest.last,
        seconds=max(times) - min(times) if times else None,
        num_superseded=sum(len(one.all_superseded()) for one in columns),
        num_bad=sum(file.num_bad for file in files),
        num_lost=sum(file.num_lost for file in files),
        metrics=[_summarise_metric(name, one, metadata.get(name, {})) for name, one in series if len(one)],
        metadata=metadata,
    )


def _summarise_metric(name: str, series: Series, known: dict[str, Any]) -> MetricSummary:
    values = series.values
    finite = np.isfinite(values)
    goal = str(known.get("GOAL", "")).upper()
    best: int | None = None
    if goal in (MINIMIZE, MAXIMIZE) and finite.any():
        ordered = np.where(finite, values, np.inf if goal == MINIMIZE else -np.inf)
        best = int(ordered.argmin() if goal == MINIMIZE else ordered.argmax())
    return MetricSummary(
        metric=name,
        unit=str(known.get("unit") or ""),
        goal=goal if goal in (MINIMIZE, MAXIMIZE) else None,
        stage=known.get("STAGE"),
        num_values=len(values),
        last=float(values[-1]),
        last_step=series.step_at(-1),
        best=None if best is None else float(values[best]),
        best_step=None if best is None else series.step_at(best),
        mean=float(values[finite].mean()) if finite.any() else float("nan"),
        num_non_finite=int(np.sum(~finite)),
    )
