"""From scores to events: a burst of bad steps is one event with a span, told once when it begins and once when it is over.

An event is over after `calm_steps` good steps. What it was is known best then: a SPIKE whose bad steps went on for
`jump_steps` was a JUMP.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

from sonde.spikes.detectors import JUMP, SPIKE, Rule, Score

CALM_STEPS: Final = 12
"""So many good steps end an event."""
JUMP_STEPS: Final = 24
"""So many bad steps in a row are a new level."""


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
