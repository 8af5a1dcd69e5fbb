"""One series of numbers over the steps of a run, and fewer of them without losing a peak. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_STEPS_AROUND: Final = 40
"""So many steps before and after an event are kept one by one."""
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Curve:
    """A series, in the order of its steps."""

    name: str
    """What it is called where it was recorded."""
    steps: Integers
    """The step of each value."""
    values: Floats
    """The values; some may be NaN or infinite."""

    def __len__(self) -> int:
        return len(self.values)

    def at(self, chosen: Any) -> "Curve":
        """Only some of the values: by a mask, by places, or a slice."""
        return Curve(name=self.name, steps=self.steps[chosen], values=self.values[chosen])

    def finite(self) -> "Curve":
        """Only the values that can be drawn."""
        keep = np.isfinite(self.values)
        return self if keep.all() else self.at(keep)

    def broken(self) -> "Curve":
        """Only the values that cannot: NaN and infinite ones."""
        return self.at(~np.isfinite(self.values))

    def between(self, first: int | None, last: int | None) -> "Curve":
        """The values of the steps from `first` to `last`, both included; None is no limit."""
        low, high = -np.inf if first is None else first, np.inf if last is None else last
        return self.at((self.steps >= low) & (self.steps <= high))


def thin(curve: Curve, max_points: int, *, around: Sequence[int] = (), reach: int = _STEPS_AROUND) -> Curve:
    """At most `max_points` of the finite values: the lowest and the highest of every stretch, the first and the last.

    Every value within `reach` of the steps `around` is kept too, as far as half of the points go.
    """
    curve = curve.finite()
    num = len(curve)
    if num <= max_points:
        return curve
    near = _near(curve.steps, around, reach, (max_points - 2) // 2)
    size = -(-num // max((max_points - 2 - len(near)) // 2, 1))
    whole = num - num % size
    starts = np.arange(0, whole, size)
    stretches = curve.values[:whole].reshape(-1, size)
    kept = [near, [0, num - 1], starts + stretches.argmin(axis=1), starts + stretches.argmax(axis=1)]
    if whole < num:
        kept.append([whole + int(curve.values[whole:].argmin()), whole + int(curve.values[whole:].argmax())])
    return curve.at(np.unique(np.concatenate(kept).astype(np.int64)))


def smoothed(curve: Curve, width: float) -> Curve:
    """The mean of the finite values within about `width` steps around each, near ones most. An outlier counts no more than a far value."""
    curve = curve.finite()
    if not len(curve) or width <= 0:
        return curve
    low, middle, high = np.quantile(curve.values[:: len(curve) // 10_000 + 1], (0.005, 0.5, 0.995))
    # A single 1e30 would swallow every digit of the sums after it.
    values = np.clip(curve.values, low - 2 * (middle - low), high + 2 * (high - middle))
    starts = np.searchsorted(curve.steps, curve.steps - width / 4)
    ends = np.searchsorted(curve.steps, curve.steps + width / 4, side="right")
    for _ in range(2):  # a mean of means: without the corners of one
        sums = np.concatenate([[0.0], np.cumsum(values)])
        values = (sums[ends] - sums[starts]) / (ends - starts)
    return Curve(name=curve.name, steps=curve.steps, values=values)


def sparkline(curve: Curve, width: int = 60) -> str:
    """The curve as one line of blocks, each as high as the highest value of its stretch; a stretch without any is a space."""
    finite = curve.finite()
    if not len(finite):
        return ""
    low, high = float(finite.values.min()), float(finite.values.max())
    width = min(width, len(finite))
    edges = np.linspace(0, len(finite), width + 1).astype(np.int64)
    tops = [float(finite.values[start:end].max()) for start, end in pairwise(edges.tolist())]
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((top - low) * scale)] for top in tops)


def _near(steps: Integers, around: Sequence[int], reach: int, max_points: int) -> list[int]:
    found: set[int] = set()
    for step in around:
        start = int(np.searchsorted(steps, step - reach))
        end = int(np.searchsorted(steps, step + reach, side="right"))
        if len(found) + end - start > max_points:
            break
        found.update(range(start, end))
    return list(found)
