"""What a rule is, and the three simple ones: a threshold, a factor, a number of standard deviations.

A rule is a frozen setting. It judges one number after another against a `State` that it made, and takes in the good ones:
what it calls bad never enters the history, and neither does what is not finite. Numbers beyond 1e100 count as 1e100: no sum or
square of them overflows. The state is small and plain, so that it goes into a checkpoint and comes back.

A `Window` has the last numbers in order of time and in order of size: taking one in costs 1 µs for 256 of them, the median nothing, the median
absolute deviation 2 µs, since it lies between two places that bisection finds.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

from sonde.errors import SettingError

GOOD: Final = ""
"""Kind of a number that is nothing special."""
SPIKE: Final = "spike"
"""Far above what came before."""
NONFINITE: Final = "nonfinite"
"""NaN or Inf."""
DIVERGENCE: Final = "divergence"
"""Climbed far, in steps that were each small enough."""
JUMP: Final = "jump"
"""Went up at once and stayed there."""

LARGEST: Final = 1e100
"""No number is larger to a rule."""


class Score(NamedTuple):
    """What a rule says of one number."""

    kind: str
    """GOOD, SPIKE, NONFINITE or DIVERGENCE."""
    baseline: float
    """What was expected; NaN when the rule does not say."""
    z: float
    """How far above it, in the rule's own unit: deviations, or multiples of what would be allowed."""


NOTHING: Final = Score(GOOD, math.nan, 0.0)
"""The score of a number that nothing more is to be said of."""


class Rule(ABC):
    """Judges a series of numbers, one after another."""

    @abstractmethod
    def start(self) -> Any:
        """The state before the first number."""

    @abstractmethod
    def score(self, state: Any, value: float) -> Score:
        """Judge the next number, and take it in if it is good. Never raises for any number."""

    @abstractmethod
    def pack(self, state: Any) -> dict[str, Any]:
        """A state as plain data."""

    @abstractmethod
    def unpack(self, packed: Mapping[str, Any]) -> Any:
        """A state back from plain data."""


@final
class Window:
    """The last `size` numbers that were pushed. All of them finite: that is the caller's duty."""

    __slots__ = ("_ordered", "_values", "size")

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self.size = size
        self._values: deque[float] = deque(maxlen=size)
        self._ordered: list[float] = []
        for value in values:
            self.push(value)

    def push(self, value: float) -> None:
        """Take in a number; the oldest leaves when there are too many."""
        values, ordered = self._values, self._ordered
        if len(values) == self.size:
            del ordered[bisect_left(ordered, values[0])]
        values.append(value)
        insort(ordered, value)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._ordered.clear()

    def values(self) -> list[float]:
        """The numbers, oldest first."""
        return list(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def median(self) -> float:
        """The middle one, or the mean of the middle two."""
        ordered = self._ordered
        half = len(ordered) >> 1
        return ordered[half] if len(ordered) & 1 else (ordered[half - 1] + ordered[half]) / 2

    def mean(self) -> float:
        """The arithmetic mean."""
        return sum(self._values) / len(self._values)

    def deviation(self) -> float:
        """The standard deviation of the sample."""
        mean = self.mean()
        return math.sqrt(sum((value - mean) ** 2 for value in self._values) / max(len(self._values) - 1, 1))

    def median_deviation(self) -> float:
        """The median of the distances from the median (of two middle ones, the upper)."""
        ordered, median = self._ordered, self.median()
        count = (len(ordered) >> 1) + 1
        # The `count` numbers nearest to the median stand side by side; moving their first place right, the distance on
        # the left shrinks and that on the right grows: the best place is where they cross.
        low, high = 0, len(ordered) - count
        while low < high:
            middle = (low + high) >> 1
            if median - ordered[middle] > ordered[middle + count - 1] - median:
                low = middle + 1
            else:
                high = middle
        here = max(median - ordered[low], ordered[low + count - 1] - median)
        if low:
            here = min(here, max(median - ordered[low - 1], ordered[low + count - 2] - median))
        return here


class WindowRule(Rule):
    """Base of the rules that need nothing but the last good numbers."""

    window: int
    min_history: int

    def start(self) -> Window:
        """No numbers yet."""
        return Window(self.window)

    def score(self, state: Window, value: float) -> Score:
        """Judge the next number, and take it in if it is good."""
        if not -LARGEST <= value <= LARGEST:
            if not math.isfinite(value):
                return Score(NONFINITE, self.baseline(state), math.inf)
            value = math.copysign(LARGEST, value)
        score = self.judge(state, value)
        if not score.kind:
            state.push(value)
        return score

    def baseline(self, state: Window) -> float:
        """What is expected: the median; NaN while still learning."""
        return state.median() if len(state) >= self.min_history else math.nan

    @abstractmethod
    def judge(self, state: Window, value: float) -> Score:
        """Judge a finite number; the state stays as it is."""

    def pack(self, state: Window) -> dict[str, Any]:
        """The numbers, oldest first."""
        return {"values": state.values()}

    def unpack(self, packed: Mapping[str, Any]) -> Window:
        """Back from plain data."""
        return Window(self.window, packed["values"])


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ThresholdRule(WindowRule):
    """Everything above a fixed number is bad."""

    above: float
    """The number."""
    window: int = 1
    """The last good number is what was expected."""
    min_history: int = 1
    """Without one nothing was."""

    def judge(self, state: Window, value: float) -> Score:
        """Judge a finite number."""
        return Score(SPIKE if value > self.above else GOOD, self.baseline(state), value - self.above)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RelativeRule(WindowRule):
    """What is a factor above the median of the last good numbers is bad."""

    factor: float = 2.0
    """How many times the median."""
    window: int = 64
    """How many numbers the median is over."""
    min_history: int = 16
    """Nothing is judged before there are so many."""

    def __post_init__(self) -> None:
        _check_window(self.window, self.min_history)
        if not self.factor > 1:
            raise SettingError(f"factor must be above 1, not {self.factor}")

    def judge(self, state: Window, value: float) -> Score:
        """Judge a finite number."""
        baseline = self.baseline(state)
        if not baseline > 0:  # still learning; and no factor makes sense of a loss that is not positive
            return Score(GOOD, baseline, 0.0)
        ratio = value / baseline
        return Score(SPIKE if ratio > self.factor else GOOD, baseline, ratio)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SigmaRule(WindowRule):
    """What is some standard deviations above the mean of the last good numbers is bad."""

    num_sigmas: float = 6.0
    """How many."""
    window: int = 128
    """How many numbers mean and deviation are over."""
    min_history: int = 64
    """Nothing is judged before there are so many."""

    def __post_init__(self) -> None:
        _check_window(self.window, self.min_history)
        if not self.num_sigmas > 0:
            raise SettingError(f"num_sigmas must be above 0, not {self.num_sigmas}")

    def baseline(self, state: Window) -> float:
        """The mean."""
        return state.mean() if len(state) >= self.min_history else math.nan

    def judge(self, state: Window, value: float) -> Score:
        """Judge a finite number."""
        baseline = self.baseline(state)
        if math.isnan(baseline):
            return Score(GOOD, baseline, 0.0)
        z = (value - baseline) / max(state.deviation(), 1e-6)
        return Score(SPIKE if z > self.num_sigmas else GOOD, baseline, z)


def _check_window(window: int, min_history: int) -> None:
    if not 2 <= min_history <= window:
        raise SettingError(f"min_history is 2 to window ({window}), not {min_history}")
