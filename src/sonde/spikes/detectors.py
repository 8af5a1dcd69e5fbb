"""What a rule is, and the three simple ones: a threshold, a factor, a number of standard deviations. And from scores to events.

A rule is a frozen setting. It judges one number after another against a `State` that it made, and takes in the good ones:
what it calls bad never enters the history, and neither does what is not finite. Numbers beyond 1e100 count as 1e100: no sum or
square of them overflows. The state is small and plain, so that it goes into a checkpoint and comes back.

A `Window` has the last numbers in order of time and in order of size: taking one in costs 1 µs for 256 of them, the median nothing, the median
absolute deviation 2 µs, since it lies between two places that bisection finds.

A burst of bad steps is one event with a span, told once when it begins and once when it is over: after `CALM_STEPS` good steps. What it was is known best
then: a SPIKE whose bad steps went on for `JUMP_STEPS` was a JUMP.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
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
CALM_STEPS: Final = 12
"""So many good steps end an event."""
JUMP_STEPS: Final = 24
"""So many bad steps in a row are a new level."""


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
class Window(deque[float]):
    """The last `size` numbers that were pushed, oldest first. All of them finite: that is the caller's duty."""

    __slots__ = ("_ordered", "median")

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        super().__init__(maxlen=size)
        self.median = math.nan
        """The middle one, or the mean of the middle two; NaN while there are none."""
        self._ordered: list[float] = []
        for value in values:
            self.push(value)

    def push(self, value: float) -> None:
        """Take in a number; the oldest leaves when there are too many."""
        ordered = self._ordered
        if len(ordered) == self.maxlen:
            del ordered[bisect_left(ordered, self[0])]
        self.append(value)
        insort(ordered, value)
        half = len(ordered) >> 1
        self.median = ordered[half] if len(ordered) & 1 else (ordered[half - 1] + ordered[half]) / 2

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._ordered.clear()
        self.median = math.nan

    def mean(self) -> float:
        """The arithmetic mean."""
        return sum(self) / len(self)

    def deviation(self) -> float:
        """The standard deviation of the sample."""
        mean = self.mean()
        return math.sqrt(sum((value - mean) ** 2 for value in self) / max(len(self) - 1, 1))

    def median_deviation(self) -> float:
        """The median of the distances from the median (of two middle ones, the upper)."""
        ordered, median = self._ordered, self.median
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
        return state.median if len(state) >= self.min_history else math.nan

    @abstractmethod
    def judge(self, state: Window, value: float) -> Score:
        """Judge a finite number; the state stays as it is."""

    def pack(self, state: Window) -> dict[str, Any]:
        """The numbers, oldest first."""
        return {"values": list(state)}

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


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Bad steps that belong together."""

    kind: str
    """SPIKE, NONFINITE, DIVERGENCE or JUMP."""
    metric: str
    """`loss` or `grad_norm`."""
    first_step: int
    """The step that began it."""
    last_step: int
    """The last bad one so far."""
    num_bad: int
    """Bad steps in it."""
    value: float
    """What the first step had."""
    baseline: float
    """What was expected there; NaN when nothing was."""
    z: float
    """How far above, at the first step."""
    peak: float
    """The highest value in it."""
    peak_step: int
    """Where that was."""

    @classmethod
    def beginning(cls, metric: str, step: int, value: float, score: Score) -> "Event":
        """One that begins with a step."""
        first = {"first_step": step, "value": value, "baseline": score.baseline, "z": score.z}
        return cls(kind=score.kind, metric=metric, last_step=step, num_bad=1, peak=value, peak_step=step, **first)  # type: ignore[arg-type]  # the fields of one score

    def with_step(self, step: int, value: float, score: Score) -> "Event":
        """The event with one more bad step."""
        higher = value > self.peak or (math.isnan(value) and not math.isnan(self.peak))
        num_bad = self.num_bad + 1
        return replace(
            self,
            kind=JUMP if self.kind == SPIKE and score.kind == SPIKE and num_bad >= JUMP_STEPS else self.kind,
            last_step=step,
            num_bad=num_bad,
            peak=value if higher else self.peak,
            peak_step=step if higher else self.peak_step,
        )


def merge_events(events: Iterable[Event]) -> Event:
    """One event out of those that ranks saw at the same step: it began when the first did, and the worst z counts."""
    found = sorted(events, key=lambda event: (event.first_step, -_finite(event.z)))
    return replace(
        max(found, key=lambda event: _finite(event.z)),
        first_step=found[0].first_step,
        last_step=max(event.last_step for event in found),
        num_bad=max(event.num_bad for event in found),
    )


def _finite(z: float) -> float:
    return math.inf if math.isnan(z) else z


@final
class EventDetector:
    """A rule, its state, and the event that is open. Feed it one value a step."""

    def __init__(self, rule: Rule, metric: str = "loss") -> None:
        self.rule = rule
        self.metric = metric
        self.open: Event | None = None
        """The event that has begun and is not over."""
        self._state = rule.start()
        self._num_calm = 0

    def update(self, step: int, value: float) -> tuple[Event | None, Event | None]:
        """Judge the value of a step. Returns the event that is over with it, and the event that begins with it."""
        score = self.rule.score(self._state, value)
        event = self.open
        if not score.kind:
            if event is None:
                return None, None
            self._num_calm += 1
            if self._num_calm < CALM_STEPS:
                return None, None
            self.open = None
            return event, None
        self._num_calm = 0
        if event is not None:
            self.open = event.with_step(step, value, score)
            return None, None
        self.open = Event.beginning(self.metric, step, value, score)
        return None, self.open

    def state_dict(self) -> dict[str, Any]:
        """Everything it remembers, as plain data for a checkpoint."""
        return {
            "rule": type(self.rule).__name__,
            "state": self.rule.pack(self._state),
            "open": asdict(self.open) if self.open else None,
            "num_calm": self._num_calm,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Back from `state_dict`. The state of another rule is of no use: this one starts afresh."""
        if state.get("rule") != type(self.rule).__name__:
            return
        self._state = self.rule.unpack(state["state"])
        self.open = Event(**state["open"]) if state["open"] else None
        self._num_calm = state["num_calm"]


def find_events(values: Iterable[float], rule: Rule, *, metric: str = "loss", first_step: int = 0) -> list[Event]:
    """The events of a whole series, one value a step: what a detector would have told, with spans and peaks."""
    detector = EventDetector(rule, metric)
    found = [detector.update(step, value)[0] for step, value in enumerate(values, first_step)]
    return [event for event in (*found, detector.open) if event is not None]
