"""How far one run's metric is from another's, step by step. Pure functions on arrays.

The errors are *unsigned*: a loss that is too low counts as much as one that is too high, and errors of opposite sign do
not cancel. (The script this replaces averaged signed errors, and so passed any run whose loss was lower.)
"""

from dataclasses import dataclass

import numpy as np

from sonde.errors import SettingError
from sonde.records.columns import Floats, Integers, Series


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Comparison:
    """Two series at the steps they have in common."""

    steps: Integers
    """The common steps; one row each if steps are lists."""
    a: Floats
    """Values of A, smoothed, as are `b` and the errors."""
    b: Floats
    num_only_a: int
    """Number of steps that only A has."""
    num_only_b: int
    num_non_finite: int
    """Number of steps at which only one of the two is finite, a difference that no error can express."""
    mean_absolute: float
    max_absolute: float
    mean_relative: float
    """|a - b| / |a|, with A as the reference; if A is 0, it is 0 when B is too and infinite otherwise."""
    max_relative: float
    worst: int
    """The position in `steps` of the largest absolute error."""

    def is_within(self, *, relative: float, absolute: float) -> bool:
        """Return whether the mean relative or absolute error is within its limit, and both are finite alike."""
        if self.num_non_finite:
            return False
        return self.mean_relative <= relative or self.mean_absolute <= absolute


def compare_series(a: Series, b: Series, *, window: int = 1) -> Comparison:
    """Compare two series at their common steps, after a running mean over `window` of them."""
    if window < 1:
        raise SettingError(f"a window is 1 value or more, not {window}")
    last_a, last_b = _last_of_each_step(a), _last_of_each_step(b)
    common = sorted(last_a.keys() & last_b.keys())
    if not common:
        raise SettingError("the two logs have no step of this metric in common", hint="`sonde log` shows what each has")
    raw_a = np.array([last_a[step] for step in common])
    raw_b = np.array([last_b[step] for step in common])
    both = np.isfinite(raw_a) & np.isfinite(raw_b)
    same = both | (~np.isfinite(raw_a) & ~np.isfinite(raw_b))
    steps = np.array([step if len(step) > 1 else step[0] for step in common], np.int64)
    smooth_a, smooth_b = smooth(raw_a[both], window), smooth(raw_b[both], window)
    absolute = np.abs(smooth_a - smooth_b)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(absolute == 0, 0.0, absolute / np.abs(smooth_a))
    return Comparison(
        steps=steps[both],
        a=smooth_a,
        b=smooth_b,
        num_only_a=len(last_a) - len(common),
        num_only_b=len(last_b) - len(common),
        num_non_finite=int(np.sum(~same)),
        mean_absolute=float(absolute.mean()) if len(absolute) else 0.0,
        max_absolute=float(absolute.max()) if len(absolute) else 0.0,
        mean_relative=float(relative.mean()) if len(relative) else 0.0,
        max_relative=float(relative.max()) if len(relative) else 0.0,
        worst=int(absolute.argmax()) if len(absolute) else 0,
    )


def smooth(values: Floats, window: int) -> Floats:
    """Return the running mean over the last `window` values, fewer at the start."""
    if window == 1 or len(values) == 0:
        return values
    # Differences of one cumulative sum; subtracting the mean first keeps it small.
    middle = values.mean()
    sums = np.concatenate([[0.0], np.cumsum(values - middle)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(last - window, 0)
    smoothed: Floats = (sums[last] - sums[first]) / (last - first) + middle
    return smoothed


def _last_of_each_step(series: Series) -> dict[tuple[int, ...], float]:
    rows = series.steps.reshape(len(series), -1).tolist()
    return {tuple(row): value for row, value in zip(rows, series.values.tolist(), strict=True)}
