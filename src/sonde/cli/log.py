"""`sonde log FILES`, `sonde compare-logs A B` and `sonde tail RUN`: read what was logged.

`log` summarises logs: last values, the best value by each metric's goal, means. `compare-logs` compares one metric of
two runs and exits 1 when they differ too much. `tail` shows the last records of a run, then each new one as it is
written.
"""

import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import data_output, json_text, number_text, picked, print_csv, print_rows, tell
from sonde.errors import DamagedFile, RunNotFound, SettingError, did_you_mean
from sonde.log.backend import LOG, METADATA
from sonde.log.compare import Comparison, compare_series
from sonde.log.files import run_directory
from sonde.log.follow import LogFollower
from sonde.log.lines import LogRecord
from sonde.log.reading import read
from sonde.log.screen import screen_line, value_text
from sonde.log.series import read_series
from sonde.log.summary import LogSummary, summarise
from sonde.records.catalog import run_status
from sonde.records.columns import Series
from sonde.records.manifest import RUNNING, read_manifest
from sonde.records.reader import damage_text
from sonde.report import wording

_COLUMNS = ("metric", "last", "best", "best_step", "mean", "num_values", "unit", "goal", "stage")
_ROWS_SHOWN = 20
_GUESSES = ("loss", "train.loss")
_POLL_SECONDS: Final = 0.2


def log(*sources: str, json: bool = False, csv: bool = False) -> None:
    """Summarise logs: last values, the best value by each metric's goal, means.

    Parameters
    ----------
    sources
        Log files, quoted globs, or run directories; each is one run. Reads logs of sonde, DLLogger and TCAP_DLLogger.
    json
        Print one JSON document instead of tables.
    csv
        Print one CSV table over all runs instead.
    """
    if not sources:
        raise SettingError("no log was given", hint="sonde log runs/x, or sonde log tmp.json other.json")
    logs = {source: summarise(source) for source in sources}
    if csv and not json:
        metrics = [(source, dataclasses.asdict(metric)) for source, one in logs.items() for metric in one.metrics]
        rows = [[source, *(metric[name] for name in _COLUMNS)] for source, metric in metrics]
        print_csv([["run", *_COLUMNS], *rows])
        return
    document = [{"run": source, **dataclasses.asdict(one)} for source, one in logs.items()]
    for one in document:
        del one["metadata"]
    tell(document, lambda console: _show(console, logs), json=json)


def _show(console: Console, logs: dict[str, LogSummary]) -> None:
    for source, one in logs.items():
        console.print(Text(source, style="bold"), Text(_headline(one)))
        if one.metrics:
            columns = ("metric", ">last", ">best", "at step", ">mean", ">values", "unit")
            print_rows(console, columns, _rows(one))
            console.print()
        else:
            console.print("no numbers in it\n")


def _rows(one: LogSummary) -> Iterator[list[object]]:
    for metric in one.metrics:
        spec = one.metadata.get(metric.metric, {}).get("format")
        last, best, mean = (
            value if value is None or not spec else value_text(value, spec)
            for value in (metric.last, metric.best, metric.mean)
        )
        bad = metric.num_non_finite
        count = Text(f"{metric.num_values} ({bad} not finite)", style="red") if bad else metric.num_values
        yield [metric.metric, last, best, metric.best_step, mean, count, metric.unit]


def _headline(one: LogSummary) -> str:
    seconds = one.seconds
    ranks = len(one.ranks)
    parts = [f"{one.num_records} records", f"last step {one.last_step}"]
    parts += [f"{ranks} ranks"] if ranks > 1 else []
    parts += [wording.duration(seconds)] if seconds is not None else []
    parts += [f"{one.num_superseded} superseded"] if one.num_superseded else []
    parts += [damage_text(one.num_bad)] if one.num_bad else []
    parts += [f"{one.num_lost} lost"] if one.num_lost else []
    return ", ".join(parts)


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """How far apart two runs may be. It is enough to be within one of the two tolerances.

    Parameters
    ----------
    relative
        Relative tolerance: the runs agree when the mean of |a - b| / |a| is at most this.
    absolute
        Absolute tolerance: the runs also agree when the mean of |a - b| is at most this.
    """

    relative: float = 0.05
    absolute: float = 0.0002


def compare_logs(
    a: str,
    b: str,
    /,
    *,
    metric: str | None = None,
    smooth: int = 1,
    tolerance: Tolerance | None = None,
    json: bool = False,
    csv: bool = False,
) -> int:
    """Compare one metric of two runs step by step. Exits 1 when they differ by more than the tolerances.

    Parameters
    ----------
    a
        The reference: a log file, a quoted glob, or a run directory.
    b
        The run to compare with the reference, in the same form.
    metric
        The metric to compare (default: `loss` or `train.loss`).
    smooth
        Compare running means over this many steps.
    tolerance
        How far apart the runs may be.
    json
        Print one JSON document instead of a table.
    csv
        Print the smoothed curves as CSV instead: step, a, b, absolute, relative.
    """
    name = metric or _guess_metric(a)
    comparison = compare_series(_read(a, name), _read(b, name), window=smooth)
    allowed = tolerance or Tolerance()
    agree = comparison.is_within(relative=allowed.relative, absolute=allowed.absolute)
    if csv and not json:
        print_csv([["step", "a", "b", "absolute", "relative"], *_compared_rows(comparison)])
    else:
        document = {"a": a, "b": b, "metric": name, "agree": agree, **_as_json(comparison)}
        tell(document, lambda console: _show_comparison(console, comparison, name, agree), json=json)
    return 0 if agree else 1


def _guess_metric(source: str) -> str:
    names = read(source).metrics
    for guess in _GUESSES:
        if guess in names:
            return guess
    raise SettingError(f"{source} has no metric called loss", hint=f"--metric NAME, one of: {', '.join(names[:20])}")


def _read(source: str, metric: str) -> Series:
    series = read_series(source, metric)
    if not len(series):
        names = read(source).metrics
        hint = did_you_mean(metric, names, f"it has: {', '.join(names[:20])}")
        raise SettingError(f"{source} has no numbers called {metric!r}", hint=hint)
    return series


def _compared_rows(comparison: Comparison) -> list[list[Any]]:
    absolute = np.abs(comparison.a - comparison.b)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(absolute == 0, 0.0, absolute / np.abs(comparison.a))
    columns = (comparison.a, comparison.b, absolute, relative)
    steps = [" ".join(map(str, step)) if isinstance(step, list) else step for step in comparison.steps.tolist()]
    return [[step, *values] for step, values in zip(steps, np.stack(columns, axis=1).tolist(), strict=True)]


def _show_comparison(console: Console, comparison: Comparison, name: str, agree: bool) -> None:
    rows = _compared_rows(comparison)
    # Spread evenly over the run, with both ends and the worst step.
    spread = np.linspace(0, len(rows) - 1, min(len(rows), _ROWS_SHOWN)).round().astype(int).tolist()
    shown = sorted({*spread, comparison.worst}) if rows else []
    styles = {comparison.worst: "" if agree else "red"}
    cells = ([Text(number_text(cell), style=styles.get(row, "")) for cell in rows[row]] for row in shown)
    print_rows(console, ("step", f"{name} a", f"{name} b", ">absolute", ">relative"), cells)
    console.print()
    bad = f", {comparison.num_non_finite} finite in only one" if comparison.num_non_finite else ""
    alone = f"{comparison.num_only_a} only in a, {comparison.num_only_b} only in b"
    console.print(f"{len(rows)} steps in common, {alone}{bad}")
    console.print(f"relative error: mean {comparison.mean_relative:.3g}, largest {comparison.max_relative:.3g}")
    console.print(f"absolute error: mean {comparison.mean_absolute:.3g}, largest {comparison.max_absolute:.3g}")
    console.print(Text("the runs agree" if agree else "the runs differ", style="green" if agree else "bold red"))


def _as_json(comparison: Comparison) -> dict[str, Any]:
    counts = picked(comparison, "num_only_a", "num_only_b", "num_non_finite")
    errors = picked(comparison, "mean_relative", "max_relative", "mean_absolute", "max_absolute")
    worst = comparison.steps[comparison.worst].tolist() if len(comparison.steps) else None
    return {"num_steps": len(comparison.steps), **counts, **errors, "worst_step": worst}


def tail(run: Path, /, *, lines: int = 10, once: bool = False, json: bool = False) -> None:
    """Show the last records of a run, then each new one as it is written.

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
        ended = once or _has_ended(run)  # before polling, so that records written before the end are still shown
        try:
            records = follower.poll()
        except RunNotFound:
            if ended or not run.exists():
                raise
            records = []
        for record in records:
            if record.type == METADATA and record.metric is not None and isinstance(record.data, dict):
                metadata.setdefault(record.metric, {}).update(record.data)
        shown = records if json else [record for record in records if record.type != METADATA]
        for record in shown[max(len(shown) - lines, 0) :] if is_first else shown:
            (data_output() if json else sys.stdout).write(_text(record, metadata, json=json) + "\n")
        sys.stdout.flush()
        is_first = is_first and not records
        if ended:
            return
        time.sleep(_POLL_SECONDS)


def _has_ended(run: Path) -> bool:
    """Return whether the run in this directory has ended. A bare log file never does."""
    directory = run_directory(run)
    if directory is None:
        return False
    try:
        return run_status(directory, read_manifest(directory)) != RUNNING
    except DamagedFile:
        return False


def _text(record: LogRecord, metadata: dict[str, dict[str, Any]], *, json: bool) -> str:
    if json:
        return json_text(picked(record, *record.__struct_fields__)).rstrip("\n")
    if record.type == LOG and isinstance(record.data, dict):
        rank = f"rank {record.rank} " if record.rank else ""
        return rank + screen_line({"datetime": record.datetime, "step": record.step, "data": record.data}, metadata)
    return value_text(record.data)
