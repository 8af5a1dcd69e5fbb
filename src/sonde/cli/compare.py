"""`sonde compare A B`: find where two probe dumps differ, and by how much.
`sonde compare-logs A B`: compare one metric of two runs step by step.

The errors of logs are *unsigned*: a loss that is too low counts as much as one that is too high,
and errors of opposite sign do not cancel. (The script this replaces averaged signed errors, and so
passed any run whose loss was lower.)
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import picked, print_csv, print_indented, print_rows, tell
from sonde.errors import SettingError, did_you_mean
from sonde.log.reading import read
from sonde.log.series import read_series
from sonde.probe import compare as dumps
from sonde.records.columns import Floats, Series
from sonde.report import wording

_STYLES = {dumps.SAME: "", dumps.DIFFERENT: "red", dumps.NOT_COMPARED: "yellow"}
_ROWS_SHOWN = 20
_GUESSES = ("loss", "train.loss")
_TOLD = (
    *("num_steps", "num_only_a", "num_only_b", "num_non_finite"),
    *("mean_relative", "max_relative", "mean_absolute", "max_absolute", "worst_step"),
)


def compare(
    a: Path,
    b: Path,
    /,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    differences: bool = False,
    json: bool = False,
) -> int:
    """Compare two probe dumps, from sonde or msprobe.

    Exits 1 when they differ.

    Parameters
    ----------
    a
        A dump_path, a step folder, a rank folder or a debug.json.
    b
        The dump to compare with it, in the same form.
    rtol
        Relative tolerance.
    atol
        Absolute tolerance.
    differences
        List only the differences.
    json
        Print one JSON document instead of a table.
    """
    comparisons = dumps.compare_dumps(a, b, dumps.Tolerance(relative=rtol, absolute=atol))
    first = dumps.first_difference(comparisons)
    counts = dict.fromkeys(_STYLES, 0)
    for comparison in comparisons:
        counts[comparison.verdict] += 1
    listed = [
        dataclasses.asdict(comparison)
        for comparison in comparisons
        if not differences or comparison.verdict == dumps.DIFFERENT
    ]

    def show(console: Console) -> None:
        if listed:
            columns = (
                "step",
                "process",
                "saved",
                "verdict",
                "by",
                ">max abs",
                ">max rel",
                ">cosine",
                "detail",
            )
            styled = [
                {**row, "verdict": Text(row["verdict"], style=_STYLES[row["verdict"]])}
                for row in listed
            ]
            print_rows(console, columns, (row.values() for row in styled))
            console.print()
        console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
        if first is not None:
            parts = [first.key or "the whole dump"]
            if first.step:
                parts.append(f"step {first.step}")
            parts.append(first.process)
            sentence = f"first difference: {' '.join(parts).rstrip()}: {first.detail}"
            console.print(Text(sentence, style="red"))

    document = {
        "counts": counts,
        "first_difference": dataclasses.asdict(first) if first else None,
        "comparisons": listed,
    }
    tell(document, show, json=json)
    return 1 if first else 0


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ToleranceFlags:
    """How far apart two runs may be. It is enough to be within one of the two tolerances.

    Parameters
    ----------
    rtol
        Relative tolerance: the runs agree when the mean of |a - b| / |a| is at most this.
    atol
        Absolute tolerance: the runs also agree when the mean of |a - b| is at most this.
    """

    rtol: float = 0.05
    atol: float = 0.0002


def compare_logs(
    a: str,
    b: str,
    /,
    *,
    metric: str | None = None,
    smooth: int = 1,
    tolerance: ToleranceFlags = ToleranceFlags(),
    json: bool = False,
    csv: bool = False,
) -> int:
    """Compare one metric of two runs, step by step.

    Exits 1 when they differ by more than the tolerances.

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
    name = metric or next((guess for guess in _GUESSES if guess in read(a).metrics), _GUESSES[0])
    comparison = LogComparison(_read(a, name), _read(b, name), window=smooth)
    agree = comparison.is_within(tolerance)
    if csv and not json:
        print_csv([["step", "a", "b", "absolute", "relative"], *comparison.rows()])
    else:
        document = {"a": a, "b": b, "metric": name, "agree": agree, **picked(comparison, *_TOLD)}
        tell(document, lambda console: _show(console, comparison, name, agree), json=json)
    return 0 if agree else 1


class LogComparison:
    """Two series at the steps they have in common, after a running mean over `window` of them."""

    def __init__(self, a: Series, b: Series, *, window: int = 1) -> None:
        if window < 1:
            raise SettingError(f"a window is 1 value or more, not {window}")
        last_a = _last_of_each_step(a)
        last_b = _last_of_each_step(b)
        common = sorted(last_a.keys() & last_b.keys())
        if not common:
            raise SettingError(
                "the two logs have no step of this metric in common",
                hint="`sonde log` shows what each has",
            )
        raw_a = np.array([last_a[step] for step in common])
        raw_b = np.array([last_b[step] for step in common])
        both = np.isfinite(raw_a) & np.isfinite(raw_b)
        self.num_only_a = len(last_a) - len(common)
        """Number of steps that only A has."""
        self.num_only_b = len(last_b) - len(common)
        self.num_non_finite = int(np.sum(np.isfinite(raw_a) != np.isfinite(raw_b)))
        """Number of steps at which only one of the two is finite, a difference that no error can
        express.
        """
        numbers = np.array([step if len(step) > 1 else step[0] for step in common], np.int64)
        self.steps = numbers[both]
        """The common steps; one row each if steps are lists."""
        self.num_steps = len(self.steps)
        self.a = smoothed(raw_a[both], window)
        self.b = smoothed(raw_b[both], window)
        self.absolute = np.abs(self.a - self.b)
        with np.errstate(divide="ignore", invalid="ignore"):
            self.relative = np.where(self.absolute == 0, 0.0, self.absolute / np.abs(self.a))
        """|a - b| / |a|, with A as the reference; if A is 0, it is 0 when B is too and infinite
        otherwise.
        """
        divisor = max(self.num_steps, 1)
        self.mean_absolute = float(self.absolute.sum()) / divisor
        self.mean_relative = float(self.relative.sum()) / divisor
        self.max_absolute = float(self.absolute.max(initial=0.0))
        self.max_relative = float(self.relative.max(initial=0.0))
        self.worst = int(self.absolute.argmax()) if self.num_steps else 0
        """The position in `steps` of the largest absolute error."""
        self.worst_step = self.steps[self.worst].tolist() if self.num_steps else None

    def is_within(self, allowed: ToleranceFlags) -> bool:
        """Return whether the mean relative or absolute error is within its limit, and both are
        finite alike.
        """
        is_near = self.mean_relative <= allowed.rtol or self.mean_absolute <= allowed.atol
        return is_near and not self.num_non_finite

    def rows(self) -> list[list[Any]]:
        """Return a row per step: the step, both values and the errors."""
        steps = [
            " ".join(map(str, step)) if isinstance(step, list) else step
            for step in self.steps.tolist()
        ]
        numbers = np.stack((self.a, self.b, self.absolute, self.relative), axis=1).tolist()
        return [[step, *values] for step, values in zip(steps, numbers, strict=True)]


def smoothed(values: Floats, window: int) -> Floats:
    """Return the running mean over the last `window` values, fewer at the start."""
    if window == 1 or len(values) == 0:
        return values
    middle = values.mean()  # subtracted first, so that the sums stay small
    sums = np.convolve(values - middle, np.ones(window))[: len(values)]
    means: Floats = sums / np.minimum(np.arange(len(values)) + 1, window) + middle
    return means


def _last_of_each_step(series: Series) -> dict[tuple[int, ...], float]:
    rows = series.steps.reshape(len(series), -1).tolist()
    return {tuple(row): value for row, value in zip(rows, series.values.tolist(), strict=True)}


def _read(source: str, metric: str) -> Series:
    series = read_series(source, metric)
    if not len(series):
        names = read(source).metrics
        hint = did_you_mean(metric, names, f"it has: {', '.join(names[:20])}")
        raise SettingError(f"{source} has no numbers called {metric!r}", hint=hint)
    return series


def _show(console: Console, comparison: LogComparison, name: str, agree: bool) -> None:
    rows = comparison.rows()
    verb = "agree" if agree else "differ"
    style = "green" if agree else "bold red"
    headline = f"the runs {verb} on {_steps_in_common(comparison)}"
    print_indented(console, Text(headline, style=style), 0)
    for kind, mean, largest in (
        ("relative", comparison.mean_relative, comparison.max_relative),
        ("absolute", comparison.mean_absolute, comparison.max_absolute),
    ):
        console.print(f"{kind} error: mean {mean:.3g}, largest {largest:.3g}")
    if comparison.num_non_finite:
        only_one = wording.counted(comparison.num_non_finite, "step")
        console.print(f"{only_one} with a finite value in only one of them", style="red")
    console.print()
    # Spread evenly over the run, with both ends and the worst step.
    spread = np.linspace(0, len(rows) - 1, min(len(rows), _ROWS_SHOWN)).round().astype(int).tolist()
    cells = []
    for number in sorted({*spread, comparison.worst}) if rows else ():
        is_bad = number == comparison.worst and not agree
        style = "red" if is_bad else ""
        cells.append([Text(wording.number(value), style=style) for value in rows[number]])
    print_rows(console, ("step", f"{name} a", f"{name} b", ">absolute", ">relative"), cells)


def _steps_in_common(comparison: LogComparison) -> str:
    """Return on how many steps two runs were compared, and how many they have."""
    num = comparison.num_steps
    if not comparison.num_only_a and not comparison.num_only_b:
        return f"all {num:,} steps" if num > 1 else wording.counted(num, "step")
    of_a = num + comparison.num_only_a
    of_b = num + comparison.num_only_b
    common = wording.counted(num, "step")
    return f"the {common} that both have; a has {of_a:,}, b has {of_b:,}"
