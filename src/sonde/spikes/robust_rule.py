"""The rule without a threshold: median and median absolute deviation, learned from good steps
alone.

    level       median of the last 16 good numbers: follows a falling loss
    residual    number minus level; its median and spread are over the last 128 good ones
    z           (residual - its median) / spread
    limit       how high z may be. Learned too: how often and how far good residuals lie in the
                upper tail says how far noise
                alone will reach once in a run (a generalized Pareto tail fitted by its moments), so
                    that heavy-tailed
                losses get a higher limit and light-tailed ones a lower one, between `min_z` and
                    `max_z`
    drift       median of the last 32 good numbers minus the lowest such median: a climb of many
                small steps

Bad numbers are excluded from all of these. Only after 24 consecutive bad numbers does their level
become the new normal: the loss has jumped and stays there, and the rule would otherwise report it
forever.

Costs 5 µs per number (benchmarks/spike_detectors.py, which also measures its accuracy).
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from statistics import median
from typing import Any, Final

from sonde.errors import SettingError
from sonde.spikes.detectors import (
    DIVERGENCE,
    JUMP_STEPS,
    LARGEST,
    NONFINITE,
    NOTHING,
    SPIKE,
    Rule,
    Score,
    Window,
)

_LEVEL_STEPS: Final = 16
"""The number of steps in the level."""
_NOISE_STEPS: Final = 128
"""The number of steps in the noise estimate."""
_MIN_HISTORY: Final = 32
"""The number of residuals required before anything is judged."""
_SLOW_STEPS: Final = 32
"""The number of steps in the slow level."""
_SLOW_MEMORY: Final = 128
"""The number of slow levels, `_SLOW_EVERY` steps apart, among which the lowest is chosen."""
_DRIFT_RELATIVE: Final = 0.04
"""A divergence must also be this fraction of the lowest slow level."""
_NEAR_ZERO: Final = 0.02
"""A level below this fraction of the first one is near zero."""
_NEAR_ZERO_RISE: Final = 0.1
"""Near zero, a bad number is above the level by this fraction of the first level."""
_SIGMA_PER_MAD: Final = 1.4826
_TAIL_FROM: Final = 2.0
"""Where the upper tail begins, in deviations."""
_TAIL_MEMORY: Final = 4096.0
"""The approximate number of steps that the tail is learned from."""
_GAUSS_TAIL: Final = (256.0, 5.8, 2.16, 1.34)
"""The prior: what a normal distribution gives in 256 steps (steps, number in the tail, sum of
excesses, sum of squares).
"""
_MAX_SHAPE: Final = 0.4
_SPREAD_EVERY: Final = 4
"""The spread is half of a step's cost, so it is updated only every this many steps, and when it is
decisive.
"""
_SLOW_EVERY: Final = 8
"""Drift is checked every this many steps, because it is slow and its median is expensive."""


@dataclass(slots=True)
class Tail:
    """How often and how far good numbers lie above `_TAIL_FROM`, as decayed sums."""

    num_steps: float = _GAUSS_TAIL[0]
    num_above: float = _GAUSS_TAIL[1]
    sum_excess: float = _GAUSS_TAIL[2]
    sum_squares: float = _GAUSS_TAIL[3]

    def learn(self, z: float) -> None:
        """Add the z of a number in the tail."""
        excess = z - _TAIL_FROM
        self.num_above += 1
        self.sum_excess += excess
        self.sum_squares += excess * excess

    def pass_steps(self, number: int) -> None:
        """Count `number` good steps; older ones decay."""
        self.num_steps += number
        if self.num_steps > _TAIL_MEMORY:
            self.num_steps /= 2
            self.num_above /= 2
            self.sum_excess /= 2
            self.sum_squares /= 2

    def quantile(self, risk: float) -> float:
        """Return the z that a step exceeds with probability `risk`, according to the fitted
        tail.
        """
        mean = self.sum_excess / self.num_above
        variance = max(self.sum_squares / self.num_above - mean * mean, 1e-12)
        shape = min(max(0.5 * (1 - mean * mean / variance), 0.0), _MAX_SHAPE)
        ratio = self.num_above / (self.num_steps * risk)
        if shape < 1e-3:
            return _TAIL_FROM + mean * math.log(ratio)
        return _TAIL_FROM + mean * (1 - shape) / shape * (math.pow(ratio, shape) - 1)


@dataclass(slots=True)
class RobustState:
    """The state of the rule."""

    level: Window
    residuals: Window
    slow: deque[float]
    """The last good numbers; their median is taken every few steps only."""
    slow_medians: deque[float]
    tail: Tail = field(default_factory=Tail)
    limit: float = 0.0
    bad: list[float] = field(default_factory=list)
    """Bad finite numbers since the last good one."""
    spread: float = 0.0
    """The deviation of the residuals; 0 until there are enough of them."""
    num_seen: int = 0
    is_adrift: bool = False
    first_level: float = 0.0
    """The level at the beginning; 0 until it is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RobustRule(Rule):
    """Judges by median and spread of good steps, with a learned limit. The defaults were tuned on
    half of the frozen traces.

    ```python
    from sonde.spikes import RobustRule, find_events

    losses = [2.5, 2.4, 2.5, 2.6] * 50 + [9.0] + [2.5] * 20
    (event,) = find_events(losses, RobustRule(min_z=6))
    assert (event.first_step, event.peak) == (200, 9.0)
    ```
    """

    risk: float = 1e-5
    """The probability per step that noise alone exceeds the limit."""
    min_z: float = 5.0
    """The learned limit for z is never below this."""
    max_z: float = 10.0
    """The learned limit for z is never above this."""
    min_relative: float = 0.01
    """A number must also be above the level by this fraction of it to be bad."""
    drift_z: float = 3.0
    """A climb by this many deviations is a divergence; infinite disables this."""

    def __post_init__(self) -> None:
        if not 0 < self.min_z <= self.max_z:
            raise SettingError(
                f"min_z ({self.min_z}) must be above 0 and at most max_z ({self.max_z})"
            )
        if not 0 < self.risk < 0.01:
            raise SettingError(f"risk is a small probability per step, not {self.risk}")

    def start(self) -> RobustState:
        """Return the initial state."""
        return RobustState(
            level=Window(_LEVEL_STEPS),
            residuals=Window(_NOISE_STEPS),
            slow=deque(maxlen=_SLOW_STEPS),
            slow_medians=deque(maxlen=_SLOW_MEMORY),
            limit=self.max_z,
        )

    def score(self, state: RobustState, value: float) -> Score:
        """Judge the next number, and learn from it if it is good."""
        expected = state.level.median
        if not -LARGEST <= value <= LARGEST:
            if not math.isfinite(value):
                return Score(NONFINITE, expected, math.inf)
            value = math.copysign(LARGEST, value)
        if len(state.level) < _LEVEL_STEPS:
            self._learn(state, value)
            return NOTHING
        residual = value - expected
        residuals = state.residuals
        if len(residuals) < _MIN_HISTORY:
            if not residuals:
                state.first_level = expected
            residuals.push(residual)
            self._learn(state, value)
            return NOTHING
        above = residual - residuals.median
        if state.num_seen % _SPREAD_EVERY == 0 or above > _TAIL_FROM * state.spread:
            spread = _SIGMA_PER_MAD * residuals.median_deviation()
            state.spread = max(spread, 1e-4 * abs(expected), 1e-12)
        z = above / state.spread
        if z > _TAIL_FROM:
            if z > state.limit and residual > self._least_rise(state, expected):
                self._endure(state, value)
                return Score(SPIKE, expected, z)
            state.tail.learn(z)
        residuals.push(residual)
        if state.bad:
            state.bad.clear()
        self._learn(state, value)
        if state.num_seen % _SLOW_EVERY == 0:
            self._look_back(state)
        if not state.is_adrift:
            return NOTHING
        lowest = min(state.slow_medians)
        return Score(DIVERGENCE, lowest, (value - lowest) / state.spread)

    def pack(self, state: RobustState) -> dict[str, Any]:
        """Convert a state to plain data (4 kB as JSON)."""
        return {field.name: _packed(getattr(state, field.name)) for field in fields(state)}

    def unpack(self, packed: Mapping[str, Any]) -> RobustState:
        """Restore a state from plain data."""
        start = self.start()
        return RobustState(
            **{
                part.name: _unpacked(getattr(start, part.name), packed[part.name])
                for part in fields(start)
                if part.name in packed  # a state of an older version has fewer
            }
        )

    def _least_rise(self, state: RobustState, expected: float) -> float:
        """Return how far a number must be above the level to be bad at all. Beside a loss that has
        gone to nothing, everything is many deviations away.
        """
        if 0 <= expected < _NEAR_ZERO * state.first_level:
            return _NEAR_ZERO_RISE * state.first_level
        return self.min_relative * abs(expected)

    def _learn(self, state: RobustState, value: float) -> None:
        state.level.push(value)
        if self.drift_z < math.inf:
            state.slow.append(value)
        state.num_seen += 1

    def _endure(self, state: RobustState, value: float) -> None:
        """Add a bad number. After JUMP_STEPS in a row, they are the new level."""
        state.bad.append(value)
        if len(state.bad) >= JUMP_STEPS:
            state.level.clear()
            state.slow.clear()
            state.slow_medians.clear()
            state.is_adrift = False
            for recent in state.bad[-_LEVEL_STEPS:]:
                self._learn(state, recent)
            state.bad.clear()

    def _look_back(self, state: RobustState) -> None:
        """Every few good steps, update the limit for z and check for drift."""
        state.tail.pass_steps(_SLOW_EVERY)
        state.limit = min(max(state.tail.quantile(self.risk), self.min_z), self.max_z)
        if len(state.slow) == _SLOW_STEPS:
            now = median(state.slow)
            lowest = min(state.slow_medians, default=now)
            allowed = max(self.drift_z * state.spread, _DRIFT_RELATIVE * abs(lowest))
            # Once drifting, the level must recover by half before another climb counts.
            state.is_adrift = now - lowest > (allowed / 2 if state.is_adrift else allowed)
            state.slow_medians.append(now)


def _packed(value: Any) -> Any:
    if isinstance(value, Tail):
        return list(astuple(value))
    return list(value) if isinstance(value, (deque, list)) else value


def _unpacked(fresh: Any, value: Any) -> Any:
    """Convert a packed value to the type that a fresh state has in its place."""
    if isinstance(fresh, Window):
        return Window(fresh.maxlen or 0, value)
    if isinstance(fresh, deque):
        return deque(value, fresh.maxlen)
    return Tail(*value) if isinstance(fresh, Tail) else type(fresh)(value)
