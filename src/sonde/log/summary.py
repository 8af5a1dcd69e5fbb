"""What a log comes down to: for each metric its last value, its best by its GOAL, its mean. Pure."""

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from sonde.log.backend import LOG
from sonde.log.reading import Log
from sonde.log.record import LogRecord
from sonde.log.series import Series, mean_over_ranks, series_of

MINIMIZE: Final = "MINIMIZE"
MAXIMIZE: Final = "MAXIMIZE"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class MetricSummary:
    """One metric of one log, over all ranks."""

    metric: str
    unit: str
    goal: str | None
    """`MINIMIZE`, `MAXIMIZE`, or None when the log does not say."""
    stage: str | None
    num_values: int
    last: float
    last_step: Any
    best: float | None
    """The best finite value; None when there is no goal or no finite value."""
    best_step: Any
    mean: float
    """Of the finite values; NaN when there are none."""
    num_non_finite: int


def summarise(log: Log) -> list[MetricSummary]:
    """Every metric that has numbers, in the order of first appearance."""
    metadata = log.metadata
    # One pass over the records, whatever the number of metrics: a pass for each took minutes for some thousand names.
    found: dict[str, dict[int, list[LogRecord]]] = {}
    for record in log:
        if record.type == LOG and isinstance(record.data, dict):
            for name in record.data:
                found.setdefault(name, {}).setdefault(record.rank, []).append(record)
    series = {
        name: mean_over_ranks([series_of(by_rank[rank], name) for rank in sorted(by_rank)])
        for name, by_rank in found.items()
    }
    return [_summarise_metric(name, one, metadata.get(name, {})) for name, one in series.items() if len(one)]


def duration_seconds(log: Log) -> float | None:
    """From the first record to the last; None when the log has no times."""
    times = [record.timestamp for record in log if record.timestamp]
    return max(times) - min(times) if times else None


def last_step(log: Log) -> Any:
    """The step of the last LOG record that has a numeric one."""
    for record in reversed(log.records):
        if record.type == LOG and isinstance(record.step, (int, list)) and record.step not in ([], None):
            return record.step
    return None


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
