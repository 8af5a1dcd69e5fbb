"""One series of numbers over the steps of a run, and fewer of them without losing a peak. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

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

    def finite(self) -> "Curve":
        """Only the values that can be drawn."""
        keep = np.isfinite(self.values)
        return Curve(name=self.name, steps=self.steps[keep], values=self.values[keep])

    def broken(self) -> "Curve":
        """Only the values that cannot: NaN and infinite ones."""
        keep = ~np.isfinite(self.values)
        return Curve(name=self.name, steps=self.steps[keep], values=self.values[keep])

    def between(self, first: int | None, last: int | None) -> "Curve":
        """The values of the steps from `first` to `last`, both included; None is no limit."""
        keep = np.ones(len(self.steps), bool)
        if first is not None:
            keep &= self.steps >= first
        if last is not None:
            keep &= self.steps <= last
        return Curve(name=self.name, steps=self.steps[keep], values=self.values[keep])


def thin(curve: Curve, max_points: int, *, around: Sequence[int] = ()) -> Curve:
    """At most `max_points` of the finite values: the lowest and the highest of every stretch, the first and the last.

    Every value near the steps `around` is kept too, as far as half of the points go.
    """
    curve = curve.finite()
    num = len(curve)
    if num <= max_points:
        return curve
    kept = {0, num - 1, *_near(curve.steps, around, (max_points - 2) // 2)}
    edges = np.linspace(0, num, (max_points - len(kept)) // 2 + 1).astype(np.int64)
    for start, end in pairwise(edges.tolist()):
        stretch = curve.values[start:end]
        kept.add(start + int(stretch.argmin()))
        kept.add(start + int(stretch.argmax()))
    chosen = np.array(sorted(kept), np.int64)
    return Curve(name=curve.name, steps=curve.steps[chosen], values=curve.values[chosen])


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


def _near(steps: Integers, around: Sequence[int], max_points: int) -> set[int]:
    found: set[int] = set()
    for step in around:
        start = int(np.searchsorted(steps, step - _STEPS_AROUND))
        end = int(np.searchsorted(steps, step + _STEPS_AROUND, side="right"))
        if len(found) + end - start > max_points:
            break
        found.update(range(start, end))
    return found
