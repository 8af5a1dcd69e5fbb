"""Watch single samples: one bad row in a batch of 64 hardly moves the mean, but its own loss stands
out.

A sample is an outlier if its loss is far above the current loss of samples of its length
(`LengthModel`). How far is learned: from where the highest 16 %, 2 % and 0.5 % of the samples of
this run begin, `SampleTail` estimates what noise alone reaches once in 100,000. If the whole batch
has gone up, no row stands out by itself, so rows are also compared with the others of their step.

The mean of the step is judged as well, adjusted for the lengths of its samples: a batch of long,
easy samples with the loss of short ones is not an event of the plain mean, but it is one here.

Costs 9 µs per step with 64 samples, fits included (benchmarks/samples.py). Pure: takes arrays,
returns outliers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sonde.spikes.detectors import (
    GOOD,
    NOTHING,
    SPIKE,
    Event,
    EventDetector,
    Score,
    Window,
    WindowRule,
)
from sonde.spikes.length_model import Counts, LengthModel, Numbers, packed, unpacked

MATCHED_LOSS: Final = "matched_loss"
"""The metric name of a step's mean adjusted for length, in deviations."""
LOSS: Final = "loss"
BITS: Final = "bits per character"
"""What a sample may stand out by."""
RISK: Final = 1e-5
"""The probability per sample that noise alone exceeds the limit."""
_MIN_Z: Final = 4.8
"""The lowest limit for z, in deviations of samples of that length."""
_LOOK_EVERY: Final = 1000
"""At most one outlier in this many steps is worth an investigation at the scene."""
_SIGMA_PER_MAD: Final = 1.4826
_SUSPICIOUS: Final = 4.0
"""Below this, the mean of a step is not examined closely."""
_TAIL_MEMORY: Final = 65_536.0
"""The approximate number of samples that the tail is learned from."""
_TAIL_BEFORE: Final = 512.0
"""The initial weight of a normal distribution, in samples."""
_TAIL_BINS: Final = 224
_EDGES: Final = np.expm1(np.arange(_TAIL_BINS) / 24)
"""The lower edges of the bins for z: an eighth of a deviation wide at 2, and up to 10,000."""
_TAIL_SHARES: Final = (0.16, 0.02, 0.005)
_DOUBT: Final = 0.54
"""With few samples, the start of the highest 2 % is uncertain: add one and a half deviations of it
for safety.
"""
_TAIL_POWERS: Final = (1.5, 1.0, 0.7, 0.5, 0.35, 0.25)
"""The candidate powers of z that may grow linearly with rarity.

Losses of samples usually lie between a normal distribution (2) and an exponential one (1). When
nearly all samples are memorized, the few that are not lie far out.
"""
_HEAVIER: Final = 1.3
"""If the highest 0.5 % begin this many times higher than a power predicts, try a lower one. Less
may be due to a few bad samples.
"""
_FIRST_LIMIT: Final = 12.0
"""The limit before the tail is known."""
_WILDEST: Final = 1e6
"""A higher z is learned as this."""
_MAX_SHARE: Final = 0.125
"""If a larger fraction of the rows (and more than one) are outliers, the step as a whole is bad and
not its rows.
"""
_SMALL_BATCH: Final = 4
"""Rows of smaller batches are not compared with one another."""
_RISEN: Final = 4.0
"""A step has risen as a whole if its median row has by this many deviations of the mean."""
_FOLLOWED: Final = 3.0
"""The level rises with a step by at most this many deviations of its mean, or half a deviation of
its samples.
"""


def _reached(
    rarity: float,
    edges: Sequence[float],
    rarities: Sequence[float],
    power: float,
    doubt: float = 0.0,
) -> float:
    """Return the z with this rarity, assuming that a power of z grows linearly with rarity as it
    does between the first two points.
    """
    low = edges[0] ** power
    high = edges[1] ** power
    slope = (high - low) / max(rarities[1] - rarities[0], 1e-3) * (1 + doubt)
    return float((high + slope * max(rarity - rarities[1], 0.0)) ** (1 / power))


class SampleTail:
    """Estimates how high z is once in a given number of samples, from how often it is moderately
    high.

    The highest 2 % are counted, not measured; otherwise the few bad samples of a corpus would
    determine how far good ones reach.
    """

    def __init__(self) -> None:
        above = [math.erfc(edge / math.sqrt(2)) / 2 for edge in _EDGES.tolist()]
        self._counts = -np.diff(above, append=0.0) * _TAIL_BEFORE
        self._num_samples = _TAIL_BEFORE
        self._num_seen = 0

    def learn(self, z: NDArray[np.float64]) -> None:
        """Add samples; older ones decay."""
        places = np.searchsorted(_EDGES, z, "right") - 1
        self._counts += np.bincount(places[places >= 0], minlength=_TAIL_BINS)
        self._num_samples += len(z)
        self._num_seen += len(z)
        # At most half of what was seen, because the beginning of a training is not like the rest.
        if self._num_samples > min(max(self._num_seen / 2, 2 * _TAIL_BEFORE), _TAIL_MEMORY):
            self._counts /= 2
            self._num_samples /= 2

    def reach(self, risk: float) -> float:
        """Return the z that a sample exceeds with probability `risk`."""
        shares = np.cumsum(self._counts[::-1])[::-1] / self._num_samples
        places = [int(np.count_nonzero(shares >= share)) - 1 for share in _TAIL_SHARES]
        low = min(max(places[0], 1), _TAIL_BINS - 3)
        high = min(max(places[1], low + 1), _TAIL_BINS - 2)
        highest = max(places[2], high + 1)
        rarities = [-math.log(max(float(shares[place]), 1e-9)) for place in (low, high, highest)]
        edges = [float(_EDGES[place]) for place in (low, high, highest)]
        power = _TAIL_POWERS[-1]
        for candidate in _TAIL_POWERS:
            if edges[2] <= _HEAVIER * _reached(rarities[2], edges, rarities, candidate):
                power = candidate
                break
        doubt = _DOUBT / math.sqrt(_TAIL_SHARES[1] * self._num_samples)
        return _reached(-math.log(risk), edges, rarities, power, doubt)

    def pack(self) -> list[Any]:
        """Return the state as plain data."""
        return [self._num_seen, self._num_samples, packed(self._counts)]

    def unpack(self, state: Sequence[Any]) -> None:
        """Restore from plain data."""
        self._num_seen = int(state[0])
        self._num_samples = float(state[1])
        self._counts = unpacked(state[2], np.float64, _TAIL_BINS)


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchedRule(WindowRule):
    """Judges standardized means of steps, which are usually 0 ± 1."""

    num_deviations: float = 7.0
    """A mean this many deviations above the median is a spike."""
    window: int = 128
    """The number of steps in the median and the deviation."""
    min_history: int = 32
    """The number of steps required before anything is judged."""

    def judge(self, state: Window, value: float) -> Score:
        """Judge a finite number."""
        if value < _SUSPICIOUS or len(state) < self.min_history:
            return NOTHING
        above = value - state.median
        z = above / max(_SIGMA_PER_MAD * state.median_deviation(), 1.0)
        return Score(SPIKE if z > self.num_deviations else GOOD, state.median, z)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleEvent:
    """The outlying samples of a step."""

    step: int
    """The step."""
    rows: tuple[int, ...]
    """The rows of the samples in the batch, worst first."""
    z: tuple[float, ...]
    """How far each is above samples of its length, in deviations; infinite if the loss is not
    finite.
    """
    expected: tuple[float, ...]
    """The expected loss for each sample's length."""
    limit: float
    """The limit for z."""
    is_worth_a_look: bool
    """Whether this is the first outlier in 1,000 steps."""
    measure: str = LOSS
    """What `z` and `limit` are about: the loss per token, or the bits per character."""


class SampleWatch:
    """Watches the samples of one rank. Call `observe` once per step."""

    def __init__(self, risk: float = RISK) -> None:
        """`risk` is the probability per sample that noise alone exceeds the limit."""
        self._risk = risk
        self.model = LengthModel()
        self.limit = _FIRST_LIMIT
        """The current limit for z."""
        self.mean = EventDetector(MatchedRule(), MATCHED_LOSS)
        """The detector for the mean of a step."""
        self._tail = SampleTail()
        self._last_look = -_LOOK_EVERY

    def observe(
        self, step: int, losses: Numbers | list[float], lengths: Any
    ) -> tuple[NDArray[np.float64] | list[float], SampleEvent | None, Event | None]:
        """Process one step. Returns the z of each sample, the outliers, and the event of the mean
        that begins.

        `losses` and `lengths` are both arrays, or both lists if they are short. `lengths` is kept
        for a while and must not be modified.
        """
        number = len(losses)
        if not number:
            return np.zeros(0), None, None
        model = self.model
        root = math.sqrt(number)
        z: NDArray[np.float64] | list[float]
        if isinstance(losses, list):
            z = model.z_of_few(lengths, losses)
            highest = max(z)
            total = sum(z)
        else:
            z = model.z(lengths, losses)
            highest = z.item(z.argmax())
            total = float(np.add.reduce(z))
        found = None
        good = z
        scaled = total / root
        if not (highest <= self.limit and total == total):  # one may be NaN
            z = np.asarray(z)
            lengths = None if lengths is None else np.asarray(lengths)
            found, keep = self._look_closely(step, z, lengths)
            good = z[keep]
            root = math.sqrt(max(len(good), 1))
            scaled = float(good.sum()) / root
            # Learn from outlying rows too: if good ones often are, the limit must rise.
            learnable = keep if found is None else np.isfinite(z)
            good = np.minimum(z[learnable], _WILDEST)
            lengths = None if lengths is None else lengths[learnable]
        followed = scaled
        if scaled >= _FOLLOWED:
            followed = min(scaled, max(_FOLLOWED, root / 2))
        model.follow(followed / root)
        learnt = model.learn(lengths, good)
        if learnt is not None and model.is_ready:
            self._tail.learn(learnt)
            self.limit = max(self._tail.reach(self._risk), _MIN_Z)
        # Every eighth normal step is enough to learn what is usual.
        mean = self.mean
        if (scaled < _SUSPICIOUS and step & 7 and mean.open is None) or not model.is_ready:
            return z, found, None
        return z, found, mean.update(step, scaled)[1]

    def _look_closely(
        self, step: int, z: NDArray[np.float64], lengths: Counts | None
    ) -> tuple[SampleEvent | None, NDArray[np.bool_]]:
        """Something is above the limit: return the outlying rows, and which other rows to learn
        from.
        """
        finite = np.isfinite(z)
        if not self.model.is_ready:
            return None, finite
        above = z if finite.sum() < _SMALL_BATCH else self._above_the_step(z, lengths, finite)
        keep = above <= self.limit
        rows = np.flatnonzero(~keep)
        if not 0 < len(rows) <= max(_MAX_SHARE * len(z), 1):
            return None, keep
        scores = np.where(np.isnan(z), np.inf, z)
        rows = rows[np.argsort(-scores[rows], kind="stable")]
        is_worth_a_look = step - self._last_look >= _LOOK_EVERY
        if is_worth_a_look:
            self._last_look = step
        event = SampleEvent(
            step=step,
            rows=tuple(rows.tolist()),
            z=tuple(scores[rows].tolist()),
            expected=tuple(
                self.model.expected(None if lengths is None else lengths[rows], len(rows)).tolist()
            ),
            limit=self.limit,
            is_worth_a_look=is_worth_a_look,
        )
        return event, keep

    def _above_the_step(
        self, z: NDArray[np.float64], lengths: Counts | None, finite: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return how far rows are above the rise of their step as a whole, in the step's own
        deviations if those are larger.
        """
        if float(np.median(z[finite])) * math.sqrt(len(z)) < _RISEN:
            return z
        scale = self.model.scale(lengths, len(z))
        risen = max(float(np.median((z * scale)[finite])), 0.0)
        above: NDArray[np.float64] = z - risen / scale
        spread = _SIGMA_PER_MAD * float(np.median(np.abs(above[finite])))
        return above / max(spread, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as plain data (16 kB)."""
        return {
            "model": self.model.state_dict(),
            "mean": self.mean.state_dict(),
            "tail": self._tail.pack(),
            "limit": self.limit,
            "last_look": self._last_look,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict`: the next step is judged as if there had been no
        interruption.
        """
        self.model.load_state_dict(state["model"])
        if state.get("mean"):
            self.mean.load_state_dict(state["mean"])
        self._tail.unpack(state["tail"])
        self.limit = float(state["limit"])
        self._last_look = int(state["last_look"])
