"""The base class of detection rules, three simple rules (threshold, factor, standard deviations),
and how scores become events.

A rule is a frozen setting. It judges one number after another using a state that it created, and
learns from the good ones: bad and non-finite numbers never enter the history. Numbers beyond 1e100
count as 1e100, so that sums and squares do not overflow. The state is small and plain, so that it
can be saved in a checkpoint.

A `Window` keeps the last numbers both in order of time and sorted by size. For 256 numbers, adding
one takes 1 µs, the median is free, and the median absolute deviation takes 2 µs by bisection.

A burst of bad steps is one event with a span, reported once when it begins and once when it is
over, after `GOOD_STEPS` good steps. Its kind is final only then: a SPIKE whose bad steps went on
for `JUMP_STEPS` was a JUMP. What is far worse than the event so far is another event: a number that
is not finite, one that is `_FAR_WORSE` times as high after good steps, or `_LEAP` times at once.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from sonde.errors import SettingError

GOOD: Final = ""
"""The kind of a normal number."""
SPIKE: Final = "spike"
"""Far above the previous numbers."""
NONFINITE: Final = "nonfinite"
"""NaN or Inf."""
DIVERGENCE: Final = "divergence"
"""Rose far in steps that were each small."""
JUMP: Final = "jump"
"""Rose at once and stayed there."""

LARGEST: Final = 1e100
"""Rules treat larger numbers as this."""
GOOD_STEPS: Final = 12
"""This many good steps end an event."""
JUMP_STEPS: Final = 24
"""This many consecutive bad steps are a new level: the event is a jump, and the default rule
(robust_rule.py) learns from them.
"""
_FAR_WORSE: Final = 3.0
"""A number this many times as far above the baseline as the peak of an event is not part of it, if
good ones were between them.
"""
_LEAP: Final = 10.0
"""A number this many times as far above the baseline is not part of it in any case."""


class Score(NamedTuple):
    """A rule's judgement of one number."""

    kind: str
    """GOOD, SPIKE, NONFINITE or DIVERGENCE."""
    baseline: float
    """The expected number; NaN if the rule has none."""
    z: float
    """The distance above the baseline in the rule's own unit: deviations, or multiples of what is
    allowed.
    """


NOTHING: Final = Score(GOOD, math.nan, 0.0)
"""The score of a normal number."""


class Rule(ABC):
    """Judges a series of numbers, one after another."""

    @abstractmethod
    def start(self) -> Any:
        """Return the initial state."""

    @abstractmethod
    def score(self, state: Any, value: float) -> Score:
        """Judge the next number, and learn from it if it is good. Never raises for any number."""

    @abstractmethod
    def pack(self, state: Any) -> dict[str, Any]:
        """Convert a state to plain data."""

    @abstractmethod
    def unpack(self, packed: Mapping[str, Any]) -> Any:
        """Restore a state from plain data."""


class Window(deque[float]):
    """The last `size` numbers pushed, oldest first. The caller must push only finite numbers."""

    __slots__ = ("_ordered", "median")

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        super().__init__(maxlen=size)
        self.median = math.nan
        """The median of the numbers; NaN if there are none."""
        self._ordered: list[float] = []
        for value in values:
            self.push(value)

    def push(self, value: float) -> None:
        """Add a number; the oldest is dropped if the window is full."""
        ordered = self._ordered
        if len(ordered) == self.maxlen:
            del ordered[bisect_left(ordered, self[0])]
        self.append(value)
        insort(ordered, value)
        count = len(ordered)
        half = count >> 1
        self.median = ordered[half] if count & 1 else (ordered[half - 1] + ordered[half]) / 2

    def clear(self) -> None:
        """Remove all numbers."""
        super().clear()
        self._ordered.clear()
        self.median = math.nan

    def mean(self) -> float:
        """Return the arithmetic mean."""
        return sum(self) / len(self)

    def deviation(self) -> float:
        """Return the sample standard deviation."""
        mean = self.mean()
        return math.sqrt(sum((value - mean) ** 2 for value in self) / max(len(self) - 1, 1))

    def median_deviation(self) -> float:
        """Return the median absolute deviation from the median (for two middle values, the upper
        one).
        """
        ordered = self._ordered
        median = self.median
        count = (len(ordered) >> 1) + 1
        # The `count` numbers nearest to the median are adjacent. Moving their start to the right,
        # the distance on the left shrinks and the one on the right grows: the best start is where
        # they cross.
        low = 0
        high = len(ordered) - count
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
    """Base class of rules that need only the last good numbers."""

    window: int
    min_history: int

    def start(self) -> Window:
        """Return an empty window."""
        return Window(self.window)

    def score(self, state: Window, value: float) -> Score:
        """Judge the next number, and learn from it if it is good."""
        if not -LARGEST <= value <= LARGEST:
            if not math.isfinite(value):
                return Score(NONFINITE, self.baseline(state), math.inf)
            value = math.copysign(LARGEST, value)
        score = self.judge(state, value)
        if not score.kind:
            state.push(value)
        return score

    def baseline(self, state: Window) -> float:
        """Return the expected number: the median, or NaN during warm-up."""
        return state.median if len(state) >= self.min_history else math.nan

    @abstractmethod
    def judge(self, state: Window, value: float) -> Score:
        """Judge a finite number without changing the state."""

    def pack(self, state: Window) -> dict[str, Any]:
        """Return the numbers, oldest first."""
        return {"values": list(state)}

    def unpack(self, packed: Mapping[str, Any]) -> Window:
        """Restore a window from plain data."""
        return Window(self.window, packed["values"])


@dataclass(frozen=True, kw_only=True, slots=True)
class ThresholdRule(WindowRule):
    """Everything above a fixed number is bad.

    ```python
    from sonde.spikes import ThresholdRule, find_events

    losses = [2.5, 2.4, 2.5, 2.6] * 50 + [9.0] + [2.5] * 20
    (event,) = find_events(losses, ThresholdRule(above=5))
    assert (event.first_step, event.peak) == (200, 9.0)
    ```
    """

    above: float
    """The threshold."""
    window: int = 1
    """The baseline is the last good number."""
    min_history: int = 1
    """Before the first good number there is no baseline."""

    def judge(self, state: Window, value: float) -> Score:
        """Judge a finite number."""
        return Score(
            SPIKE if value > self.above else GOOD, self.baseline(state), value - self.above
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RelativeRule(WindowRule):
    """Numbers above a multiple of the median of the last good numbers are bad.

    ```python
    from sonde.spikes import RelativeRule, find_events

    losses = [2.5, 2.4, 2.5, 2.6] * 50 + [9.0] + [2.5] * 20
    (event,) = find_events(losses, RelativeRule(factor=2))
    assert (event.first_step, event.peak) == (200, 9.0)
    ```
    """

    factor: float = 2.0
    """The multiple of the median."""
    window: int = 64
    """The number of values in the median."""
    min_history: int = 16
    """The number of values required before anything is judged."""

    def __post_init__(self) -> None:
        _check_window(self.window, self.min_history)
        if not self.factor > 1:
            raise SettingError(f"factor must be above 1, not {self.factor}")

    def judge(self, state: Window, value: float) -> Score:
        """Judge a finite number."""
        baseline = self.baseline(state)
        # warming up, or a loss that is not positive, for which a factor makes no sense
        if not baseline > 0:
            return Score(GOOD, baseline, 0.0)
        ratio = value / baseline
        return Score(SPIKE if ratio > self.factor else GOOD, baseline, ratio)


@dataclass(frozen=True, kw_only=True, slots=True)
class SigmaRule(WindowRule):
    """Numbers more than some standard deviations above the mean of the last good numbers are
    bad.

    ```python
    from sonde.spikes import SigmaRule, find_events

    losses = [2.5, 2.4, 2.5, 2.6] * 50 + [9.0] + [2.5] * 20
    (event,) = find_events(losses, SigmaRule(num_sigmas=6))
    assert (event.first_step, event.peak) == (200, 9.0)
    ```
    """

    num_sigmas: float = 6.0
    """The number of standard deviations."""
    window: int = 128
    """The number of values in the mean and the deviation."""
    min_history: int = 64
    """The number of values required before anything is judged."""

    def __post_init__(self) -> None:
        _check_window(self.window, self.min_history)
        if not self.num_sigmas > 0:
            raise SettingError(f"num_sigmas must be above 0, not {self.num_sigmas}")

    def baseline(self, state: Window) -> float:
        """Return the mean, or NaN during warm-up."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Bad steps that belong together."""

    kind: str
    """SPIKE, NONFINITE, DIVERGENCE or JUMP."""
    metric: str
    """`loss`, `grad_norm`, `matched_loss` (the mean adjusted for the lengths of its samples), or
    the name that `find_events` was given.
    """
    first_step: int
    """The step at which it began."""
    last_step: int
    """The last bad step so far."""
    num_bad: int
    """The number of bad steps."""
    value: float
    """The value at the first step."""
    baseline: float
    """The expected value there; NaN if there was none."""
    z: float
    """How far the first step was above the baseline, in the rule's unit."""
    peak: float
    """The highest value."""
    peak_step: int
    """The step with the highest value."""

    @classmethod
    def beginning(cls, metric: str, step: int, value: float, score: Score) -> "Event":
        """Create an event that begins at a step."""
        first = {"first_step": step, "value": value, "baseline": score.baseline, "z": score.z}
        # the fields of one score
        return cls(
            kind=score.kind,
            metric=metric,
            last_step=step,
            num_bad=1,
            peak=value,
            peak_step=step,
            **first,  # type: ignore[arg-type]
        )

    def with_step(self, step: int, value: float, score: Score) -> "Event":
        """Return the event extended by one more bad step."""
        higher = value > self.peak or (math.isnan(value) and not math.isnan(self.peak))
        num_bad = self.num_bad + 1
        kind = self.kind
        if kind == SPIKE and score.kind == SPIKE and num_bad >= JUMP_STEPS:
            kind = JUMP
        return replace(
            self,
            kind=kind,
            last_step=step,
            num_bad=num_bad,
            peak=value if higher else self.peak,
            peak_step=step if higher else self.peak_step,
        )


def merge_events(events: Iterable[Event]) -> Event:
    """Merge events that ranks saw at the same step, with the earliest beginning and the highest
    z.
    """
    found = sorted(events, key=lambda event: event.first_step)
    return replace(
        max(found, key=lambda event: math.inf if math.isnan(event.z) else event.z),
        first_step=found[0].first_step,
        last_step=max(event.last_step for event in found),
        num_bad=max(event.num_bad for event in found),
    )


class EventDetector:
    """A rule with its state and the open event. Feed it one value per step."""

    def __init__(self, rule: Rule, metric: str = "loss") -> None:
        self.rule = rule
        self.metric = metric
        self.open: Event | None = None
        """The event that has begun and is not over, if any."""
        self._state = rule.start()
        self._num_good = 0

    def update(self, step: int, value: float) -> tuple[Event | None, Event | None]:
        """Judge the value of a step. Returns the event that ends with it and the event that begins
        with it, which may be both.
        """
        score = self.rule.score(self._state, value)
        event = self.open
        if not score.kind:
            if event is None:
                return None, None
            self._num_good += 1
            if self._num_good < GOOD_STEPS:
                return None, None
            self.open = None
            return event, None
        is_after_good = self._num_good > 0
        self._num_good = 0
        if event is not None and not _is_another(event, value, score, is_after_good=is_after_good):
            self.open = event.with_step(step, value, score)
            return None, None
        self.open = Event.beginning(self.metric, step, value, score)
        return event, self.open

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data for a checkpoint."""
        return {
            "rule": type(self.rule).__name__,
            "state": self.rule.pack(self._state),
            "open": asdict(self.open) if self.open else None,
            "num_calm": self._num_good,  # its first name, for the files
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict`. The state of a different rule is ignored."""
        if state.get("rule") != type(self.rule).__name__:
            return
        self._state = self.rule.unpack(state["state"])
        self.open = Event(**state["open"]) if state["open"] else None
        self._num_good = state["num_calm"]


def _is_another(event: Event, value: float, score: Score, *, is_after_good: bool) -> bool:
    """Return whether a bad number begins an event of its own although another one is open."""
    if NONFINITE in (score.kind, event.kind):
        return event.kind != NONFINITE
    height = value - score.baseline
    factor = _FAR_WORSE if is_after_good else _LEAP
    return height > factor * (event.peak - event.baseline)


def find_events(
    values: Iterable[float], rule: Rule, *, metric: str = "loss", first_step: int = 0
) -> list[Event]:
    """Return the events of a whole series, one value per step, with spans and peaks.

    ```python
    from sonde.spikes import RobustRule, find_events

    losses = [2.5, 2.4, 2.5, 2.6] * 50 + [9.0] + [2.5] * 20
    (event,) = find_events(losses, RobustRule())
    assert (event.first_step, event.peak) == (200, 9.0)
    ```
    """
    detector = EventDetector(rule, metric)
    found = [detector.update(step, value)[0] for step, value in enumerate(values, first_step)]
    return [event for event in (*found, detector.open) if event is not None]
