"""One series of values over the steps of a run, thinning that keeps the peaks, and panels that
curve.js draws. Pure.

    {"id": "loss", "title": "loss", "height": 260, "lines": […], "broken": [[350, "NaN"]]}

A line has a `label`, a `kind` (its CSS class), `dx` (the first step, then the difference to each
next one: a third of the bytes) and `y`. Where the line is interrupted, by values that are not
finite or by steps at which nothing was recorded, a point has null as `y`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from sonde.records.columns import Floats, Integers
from sonde.report.wording import number, visible

_MAX_BROKEN: Final = 500
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_MAX_BREAKS: Final = 500
_GAP: Final = 20.0
"""A pause this many times longer than the usual distance between two values is a gap."""


Line: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Curve:
    """A series of values, ordered by step."""

    name: str
    """Its name in the records."""
    steps: Integers
    """The step of each value."""
    values: Floats
    """The values; some may be NaN or infinite."""

    def __len__(self) -> int:
        return len(self.values)

    def at(self, chosen: Any) -> "Curve":
        """Return the values selected by a mask, by indices or by a slice."""
        return Curve(name=self.name, steps=self.steps[chosen], values=self.values[chosen])

    def finite(self) -> "Curve":
        """Return only the finite values, which can be drawn."""
        keep = np.isfinite(self.values)
        return self if keep.all() else self.at(keep)

    def broken(self) -> "Curve":
        """Return only the NaN and infinite values."""
        return self.at(~np.isfinite(self.values))

    def between(self, first: int | None, last: int | None) -> "Curve":
        """Return the values of the steps from `first` to `last`, both included; None means no
        limit.
        """
        low = -np.inf if first is None else first
        high = np.inf if last is None else last
        return self.at((self.steps >= low) & (self.steps <= high))


def thin(curve: Curve, max_points: int, *, around: Sequence[int] = (), reach: int = 0) -> Curve:
    """Return at most `max_points` finite values: the minimum and maximum of every stretch, the
    first and the last.

    Every value within `reach` steps of those in `around` is kept too, using up to half of the
    points.
    """
    curve = curve.finite()
    num = len(curve)
    if num <= max_points:
        return curve
    ranges = [
        np.arange(*np.searchsorted(curve.steps, (step - reach, step + reach + 1)))
        for step in around
    ]
    near = np.unique(np.concatenate([[], *ranges]))[: (max_points - 2) // 2]
    size = -(-num // max((max_points - 2 - len(near)) // 2, 1))
    whole = num - num % size
    starts = np.arange(0, whole, size)
    stretches = curve.values[:whole].reshape(-1, size)
    kept = [
        near,
        [0, num - 1],
        starts + stretches.argmin(axis=1),
        starts + stretches.argmax(axis=1),
    ]
    if whole < num:
        kept.append(
            [whole + int(curve.values[whole:].argmin()), whole + int(curve.values[whole:].argmax())]
        )
    return curve.at(np.unique(np.concatenate(kept).astype(np.int64)))


def smoothed(curve: Curve, width: float) -> Curve:
    """Return a moving average of the finite values over about `width` steps, weighted toward the
    center.

    Outliers are clipped first, so that a single huge value does not dominate.
    """
    curve = curve.finite()
    if not len(curve) or width <= 0:
        return curve
    low, middle, high = np.quantile(curve.values[:: len(curve) // 10_000 + 1], (0.005, 0.5, 0.995))
    # A single 1e30 would wipe out the precision of every later sum.
    values = np.clip(curve.values, low - 2 * (middle - low), high + 2 * (high - middle))
    starts = np.searchsorted(curve.steps, curve.steps - width / 4)
    ends = np.searchsorted(curve.steps, curve.steps + width / 4, side="right")
    for _ in range(2):  # averaging twice avoids the corners of a single moving average
        sums = np.concatenate([[0.0], np.cumsum(values)])
        values = (sums[ends] - sums[starts]) / (ends - starts)
    return Curve(name=curve.name, steps=curve.steps, values=values)


def sparkline(curve: Curve, width: int = 60) -> str:
    """Return the curve as one line of block characters, each showing the highest value of its
    stretch.
    """
    finite = curve.finite()
    if not len(finite):
        return ""
    low = float(finite.values.min())
    high = float(finite.values.max())
    width = min(width, len(finite))
    starts = np.linspace(0, len(finite), width, endpoint=False).astype(np.int64)
    tops = np.maximum.reduceat(finite.values, starts).tolist()
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((top - low) * scale)] for top in tops)


def breaks(curve: Curve) -> Integers:
    """Return the places at which a curve is interrupted: where values that are not finite begin,
    and behind the last value before a gap.
    """
    steps = curve.steps
    if len(steps) < 2:
        return steps[:0]
    bad = ~np.isfinite(curve.values)
    begins = bad.copy()
    begins[1:] &= ~bad[:-1]
    distances = np.diff(steps)
    is_gap = distances > max(_GAP * float(np.median(distances)), 1)
    # Rare evaluations come at irregular distances: only a curve of many values has gaps.
    behind = steps[:-1][is_gap] + distances[is_gap] / 2
    gaps = behind.astype(steps.dtype) if len(steps) > _GAP else steps[:0]
    found = np.unique(np.concatenate([steps[begins], gaps]))
    return found[:: len(found) // _MAX_BREAKS + 1]


def panel(
    name: str, title: str, lines: Sequence[Line], height: int, whole: Curve | None
) -> dict[str, Any]:
    """Return one panel. Non-finite values of `whole` are marked; if there are many, an evenly
    spread selection is.
    """
    marks: list[list[Any]] = []
    if whole is not None:
        broken = whole.broken()
        spread = broken.at(slice(None, None, len(broken) // _MAX_BROKEN + 1))
        found = zip(spread.steps.tolist(), spread.values.tolist(), strict=True)
        marks = [[step, number(value)] for step, value in found]
    return {
        # as it is: the page asks for more of the panel by this name
        "id": name.encode("utf-8", "backslashreplace").decode(),
        "title": visible(title),
        "height": height,
        "lines": lines,
        "broken": marks,
    }


def line(label: str, kind: str, curve: Curve, broken_at: Integers | None = None) -> Line:
    """Return a thinned curve as a line of a panel, interrupted at the places `broken_at`."""
    steps = curve.steps
    values = curve.values
    if broken_at is not None and len(broken_at) and len(steps):
        inside = broken_at[(broken_at > steps[0]) & (broken_at < steps[-1])]
        places, first = np.unique(np.searchsorted(steps, inside), return_index=True)
        steps = np.insert(steps, places, inside[first])
        values = np.insert(values, places, np.nan)
    differences = np.diff(steps, prepend=steps[:1] * 0).tolist()
    shown = [None if math.isnan(value) else _rounded(value) for value in values.tolist()]
    return {"label": visible(label), "kind": kind, "dx": differences, "y": shown}


def _rounded(value: float) -> float:
    """Round to six digits: more than a screen shows, and half as long as full precision."""
    rounded = float(f"{value:.6g}")
    return rounded if math.isfinite(rounded) else math.copysign(1.7e308, value)
