"""`sonde log FILES` and `sonde tail RUN`: read what was logged.

`log` summarises logs: last values, the best value by each metric's goal, means. `tail` shows the
last records of a run, then each new one as it is written.
"""

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import data_output, json_text, picked, print_csv, print_rows, tell
from sonde.errors import RunNotFound, SettingError
from sonde.log.backend import LOG, METADATA
from sonde.log.backends.stdout import value_text
from sonde.log.lines import LogFile, LogRecord, Source, find_log_files, merge_by_time, run_directory
from sonde.log.reading import metadata_of
from sonde.log.series import LogColumns, read_columns, series_of
from sonde.records.catalog import DAMAGED, summarise_run
from sonde.records.columns import Series
from sonde.records.files import open_regular
from sonde.records.manifest import RUNNING
from sonde.records.reader import damage_text
from sonde.records.values import step_numbers
from sonde.report import wording

_COLUMNS = ("metric", "last", "best", "best_step", "mean", "num_values", "unit", "goal", "stage")
_MINIMIZE: Final = "MINIMIZE"
_MAXIMIZE: Final = "MAXIMIZE"
_POLL_SECONDS: Final = 0.2
_TAIL_BYTES: Final = 1 << 18
_HEAD_BYTES: Final = 1 << 16


def log(*sources: str, json: bool = False, csv: bool = False) -> None:
    """Summarise logs: the last, best and mean of each metric.

    The best is the lowest or the highest value, by each metric's goal.

    Parameters
    ----------
    sources
        Log files, quoted globs, or run directories; each is one run. Reads logs of sonde, DLLogger
            and TCAP_DLLogger.
    json
        Print one JSON document instead of tables.
    csv
        Print one CSV table over all runs instead.
    """
    if not sources:
        raise SettingError(
            "no log was given", hint="sonde log runs/x, or sonde log tmp.json other.json"
        )
    logs = {source: summarise(source) for source in sources}
    for source, summary in logs.items():
        if not summary.num_records:
            cause = damage_text(summary.num_bad) if summary.num_bad else "it is empty"
            raise SettingError(f"there are no records in {source}", cause=cause)
    if csv and not json:
        rows = [["run", *_COLUMNS]]
        for source, summary in logs.items():
            for metric in summary.metrics:
                rows += [[source, *picked(metric, *_COLUMNS).values()]]
        print_csv(rows)
        return

    def show(console: Console) -> None:
        for place, (source, summary) in enumerate(logs.items()):
            if place:
                console.print()
            headline = Text.assemble((f"{source}  ", "bold"), _headline(summary))
            console.print(headline, soft_wrap=True)
            if summary.metrics:
                columns = ("metric", ">last", ">best", ">at step", ">mean", ">values", "unit")
                cells = (
                    _cells(metric, summary.formats.get(metric.metric))
                    for metric in summary.metrics
                    if not (metric.metric == "rank" and metric.last == -1)  # "all ranks", in TCAP
                )
                print_rows(console, columns, cells, cut_names=True)
            else:
                console.print("no numbers in it")

    tell(
        [{"run": source, **summary.as_json()} for source, summary in logs.items()], show, json=json
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricSummary:
    """One metric of a log, over all ranks. Best and mean are of the finite values."""

    metric: str
    """Its name."""
    unit: str
    """Its unit; empty if none is known."""
    goal: str | None
    """MINIMIZE or MAXIMIZE; None if it says neither."""
    stage: object
    """The stage of training it belongs to, as its metadata say."""
    num_values: int
    """The number of values."""
    last: float
    """The last value."""
    last_step: int | list[int] | None
    """The step of the last value."""
    best: float | None
    """The best value by its goal."""
    best_step: int | list[int] | None
    """The step of the best value."""
    mean: float
    """The mean."""
    num_non_finite: int
    """The number of values that are not finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSummary:
    """What a log says."""

    num_records: int
    """The number of records."""
    ranks: list[int]
    """The ranks that wrote them."""
    last_step: Any
    """The step of the last record with a numeric step, as it was logged."""
    seconds: float | None
    """The time from the first record to the last."""
    num_superseded: int
    """The number of records that no longer count, wholly or in part."""
    num_bad: int
    """The number of damaged lines."""
    num_lost: int
    """The number of records that the logger could not write."""
    metrics: list[MetricSummary]
    """Every metric that has numbers, in order of first appearance."""
    formats: dict[str, object]
    """How numbers are shown on the screen, by metric."""

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain data, without what is for the screen."""
        document = asdict(self)
        del document["formats"]
        return document


def summarise(source: Source) -> LogSummary:
    """Summarise a log: a file, a glob, a run directory, or a list of them. Costs 2 µs per
    record.
    """
    files = [read_columns(path) for path in find_log_files(source)]
    parts = [part for file in files for part in file.by_rank.values()]
    metadata = metadata_of(record for file in files for record in file.metadata)
    latest = max(files, key=lambda file: max(file.times, default=0.0))
    return LogSummary(
        num_records=sum(file.num_records for file in files),
        ranks=sorted({rank for file in files for rank in file.by_rank}),
        last_step=latest.last,
        seconds=_duration(files),
        num_superseded=sum(len(part.all_superseded()) for part in parts),
        num_bad=sum(file.num_bad for file in files),
        num_lost=sum(file.num_lost for file in files),
        metrics=_summarise_metrics(files, metadata),
        formats={name: known.get("format") for name, known in metadata.items()},
    )


def _duration(files: Sequence[LogColumns]) -> float | None:
    """Return the seconds from the first record to the last; None if none has a time."""
    times = [time for file in files for time in file.times]
    if not times:
        return None
    return max(times) - min(times)


def _summarise_metrics(
    files: Sequence[LogColumns], metadata: Mapping[str, dict[str, Any]]
) -> list[MetricSummary]:
    names: dict[str, None] = {}
    for file in files:
        for part in file.by_rank.values():
            names.update(dict.fromkeys(part.columns.names))
    found = []
    for name in names:
        series = series_of(files, name)
        if len(series):
            found.append(_summarise_metric(name, series, metadata.get(name, {})))
    return found


def _summarise_metric(name: str, series: Series, known: dict[str, Any]) -> MetricSummary:
    values = series.values
    finite = np.isfinite(values)
    goal = str(known.get("GOAL", "")).upper()
    best: int | None = None
    if finite.any() and goal == _MINIMIZE:
        best = int(np.where(finite, values, np.inf).argmin())
    elif finite.any() and goal == _MAXIMIZE:
        best = int(np.where(finite, values, -np.inf).argmax())
    return MetricSummary(
        metric=name,
        unit=str(known.get("unit") or ""),
        goal=goal if goal in (_MINIMIZE, _MAXIMIZE) else None,
        stage=known.get("STAGE"),
        num_values=len(values),
        last=float(values[-1]),
        last_step=series.step_at(-1),
        best=None if best is None else float(values[best]),
        best_step=None if best is None else series.step_at(best),
        mean=float(values[finite].mean()) if finite.any() else math.nan,
        num_non_finite=int(np.sum(~finite)),
    )


def _cells(metric: MetricSummary, spec: object) -> list[object]:
    """Return the row of a metric; its numbers as `spec` says, if it says anything."""
    last, best, mean = (
        value_text(number, spec) if spec and number is not None else wording.number(number)
        for number in (metric.last, metric.best, metric.mean)
    )
    count: object = metric.num_values
    if metric.num_non_finite:
        text = f"{metric.num_values} ({metric.num_non_finite} not finite)"
        count = Text(text, style="red")
    numbers = step_numbers(metric.best_step)
    best_step = ", ".join(map(str, numbers)) if numbers else None
    return [metric.metric, last, best, best_step, mean, count, metric.unit]


def _headline(summary: LogSummary) -> str:
    parts = [
        f"{summary.num_records} records",
        f"last {_step_text(summary.last_step) or 'step unknown'}",
    ]
    if len(summary.ranks) > 1:
        parts.append(f"{len(summary.ranks)} ranks")
    if summary.seconds is not None:
        parts.append(wording.duration(summary.seconds))
    if summary.num_superseded:
        parts.append(f"{summary.num_superseded} replaced after a rollback or restart")
    if summary.num_bad:
        parts.append(damage_text(summary.num_bad))
    if summary.num_lost:
        parts.append(f"{summary.num_lost} lost")
    return ", ".join(parts)


def tail(run: Path, /, *, lines: int = 10, once: bool = False, json: bool = False) -> None:
    """Follow the log of a run as it is written.

    Shows the last records, then each new one.

    Parameters
    ----------
    run
        A run directory, followed until the run ends, or a log file, followed until interrupted.
    lines
        Number of existing records to show first.
    once
        Show the existing records and exit.
    json
        Print one JSON object per record instead of text.
    """
    if lines < 0:
        raise SettingError(f"--lines is 0 or more, not {lines}")
    follower = LogFollower(run)
    metadata: dict[str, dict[str, Any]] = {}
    is_first = True
    while True:
        # before polling, so that records written before the end are still shown
        ended = once or _has_ended(run)
        try:
            records = follower.poll()
        except RunNotFound:
            if ended or not _may_begin_to_log(run):
                raise
            records = []
        metadata = metadata_of(records, metadata)
        shown = records if json else [record for record in records if record.type != METADATA]
        if is_first:
            shown = shown[max(len(shown) - lines, 0) :]
        output = data_output() if json else sys.stdout
        for record in shown:
            output.write(_text(record, metadata, json=json) + "\n")
        sys.stdout.flush()
        is_first = is_first and not records
        if ended:
            return
        time.sleep(_POLL_SECONDS)


def _may_begin_to_log(run: Path) -> bool:
    """Return whether a path without a log may get one: a run may, any other folder is a mistake."""
    return run.exists() and (not run.is_dir() or run_directory(run) is not None)


def _has_ended(run: Path) -> bool:
    """Return whether the run in this directory has ended. A bare log file never does."""
    directory = run_directory(run)
    return directory is not None and summarise_run(directory).status not in (RUNNING, DAMAGED)


def _text(record: LogRecord, metadata: dict[str, dict[str, Any]], *, json: bool) -> str:
    if json:
        return json_text(picked(record, *record.__struct_fields__)).rstrip("\n")
    if record.type == LOG and isinstance(record.data, dict):
        parts = [str(record.datetime or "")[11:19], _step_text(record.step)]
        if record.rank:
            parts.append(f"rank {record.rank}")
        for name, value in record.data.items():
            if (name, value) != ("rank", -1):  # TCAP's word for "all ranks"
                parts.append(_value_text(str(name), value, metadata.get(name) or {}))
        return "  ".join(part for part in parts if part)
    return value_text(record.data)


def _step_text(step: object) -> str:
    numbers = step_numbers(step)
    if not numbers:
        return "" if step is None else value_text(step)
    *epochs, last = numbers
    return f"epoch {epochs[0]:,} step {last:,}" if epochs else f"step {last:,}"


def _value_text(name: str, value: object, known: dict[str, Any]) -> str:
    """Return a value with its name and unit; a number as its metadata say, or rounded."""
    spec = known.get("format")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    shown = wording.number(value) if is_number and not spec else value_text(value, spec)
    return " ".join(part for part in (name, shown, str(known.get("unit") or "")) if part)


class LogFollower:
    """Returns what has been written to a live log since the last call, by all ranks, also to files
    that appear later.

    Starts near the end (the last 256 KiB of each file) after reading the METADATA at the beginning,
    so that a log of many gigabytes opens immediately. A file that was truncated or replaced by a
    shorter one is read from its start again.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._files: dict[Path, LogFile] = {}

    def poll(self) -> list[LogRecord]:
        """Return the new records in time order. Raises RunNotFound while there is no log at all."""
        return merge_by_time([self._read(path) for path in find_log_files(self._source)])

    def _read(self, path: Path) -> list[LogRecord]:
        records = [] if path in self._files else self._begin(path)
        if path.stat().st_size < self._files[path].scanner.offset:
            self._files[path] = LogFile(path)
        file = self._files[path]
        return records + [
            record for block in file.blocks(tail=False) for record in file.records(block)
        ]

    def _begin(self, path: Path) -> list[LogRecord]:
        """Start near the end of a file; return the METADATA from its beginning if that part is
        skipped.
        """
        with open_regular(path, follow=True) as file:
            start = max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0)
            file.seek(start)
            offset = start + len(file.readline(_TAIL_BYTES)) if start else 0
            file.seek(0)
            head = file.read(_HEAD_BYTES).rpartition(b"\n")[0] if start else b""
        self._files[path] = LogFile(path, offset=offset)
        return [record for record in LogFile(path).records(head) if record.type == METADATA]
