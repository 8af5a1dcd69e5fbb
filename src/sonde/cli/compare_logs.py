"""`sonde compare-logs A B`: compare one metric of two runs. Exits 1 when they differ too much."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import number_text, picked, print_csv, print_rows, tell
from sonde.errors import SettingError, did_you_mean
from sonde.log.compare import Comparison, compare_series
from sonde.log.reading import read
from sonde.log.series import read_series
from sonde.records.index import Series

_ROWS_SHOWN = 20
_GUESSES = ("loss", "train.loss")


@final
@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
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
        print_csv([["step", "a", "b", "absolute", "relative"], *_rows(comparison)])
    else:
        document = {"a": a, "b": b, "metric": name, "agree": agree, **_as_json(comparison)}
        tell(document, lambda console: _show(console, comparison, name, agree), json=json)
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


def _rows(comparison: Comparison) -> list[list[Any]]:
    absolute = np.abs(comparison.a - comparison.b)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(absolute == 0, 0.0, absolute / np.abs(comparison.a))
    columns = (comparison.a, comparison.b, absolute, relative)
    steps = [" ".join(map(str, step)) if isinstance(step, list) else step for step in comparison.steps.tolist()]
    return [[step, *values] for step, values in zip(steps, np.stack(columns, axis=1).tolist(), strict=True)]


def _show(console: Console, comparison: Comparison, name: str, agree: bool) -> None:
    rows = _rows(comparison)
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
