"""Watches single samples: one bad row in a batch of 64 hardly moves the mean, but its own loss stands out.

A sample stands out when its loss is far above what samples of its length lose now (`LengthModel`). How far is learnt: where the highest 16 %,
2 % and 0.5 % of the samples of this run begin says where noise alone reaches once in 100,000 (`UpperTail`). When the whole batch has gone up, no row stands out
by itself: rows are compared with the others of their step too.

The mean of the step is judged as well, with the lengths of its samples taken out: a batch of long, easy samples that loses what short ones lose is
no event of the plain mean, but it is one here.

Costs 9 µs a step at 64 samples, fits included (benchmarks/samples.py). Pure: takes arrays, returns what stands out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.errors import SettingError
from sonde.spikes.detectors import GOOD, NOTHING, SPIKE, Event, EventDetector, Score, Window, WindowRule
from sonde.spikes.length_model import Counts, LengthModel, Numbers, packed, unpacked

MATCHED_LOSS: Final = "matched_loss"
"""Metric of a step's mean with the lengths taken out, in deviations."""
_SIGMA_PER_MAD: Final = 1.4826
_SUSPICIOUS: Final = 4.0
"""Below this a step's mean is not looked at closely."""
_TAIL_MEMORY: Final = 65_536.0
"""Samples that the tail is learnt from, about,"""
_TAIL_BEFORE: Final = 512.0
"""and as how many of them a normal law counts in the beginning."""
_TAIL_BINS: Final = 224
_EDGES: Final = np.expm1(np.arange(_TAIL_BINS) / 24)
"""Where the bins that z is counted in begin: an eighth of a deviation wide at 2, and up to 10,000."""
_TAIL_SHARES: Final = (0.16, 0.02, 0.005)
_DOUBT: Final = 0.54
"""Few samples say roughly where the highest 2 % begin: one and a half deviations of that go to the side of caution."""
_TAIL_POWERS: Final = (1.5, 1.0, 0.7, 0.5, 0.35, 0.25)
"""What power of z is rare in proportion. Losses of samples usually lie between a normal law (2) and an exponential one (1); where nearly all
samples are known by heart, the few that are not lie far out."""
_HEAVIER: Final = 1.3
"""The highest 0.5 % begin so many times higher than a power says: it is a lower one. Less may be the work of a few bad samples."""
_FIRST_LIMIT: Final = 12.0
"""Before the tail is known."""
_WILDEST: Final = 1e6
"""No z is learnt as more than this."""
_SMALL_BATCH: Final = 4
"""Fewer rows are not compared with one another."""
_RISEN: Final = 4.0
"""A step has gone up as a whole when its middle row has by so many deviations of the mean."""
_FOLLOWED: Final = 3.0
"""The level follows a step no further up than so many deviations of its mean, or half a deviation of its samples."""


def _reached(
    rarity: float, edges: Sequence[float], rarities: Sequence[float], power: float, doubt: float = 0.0
) -> float:
    """The z that is as rare as this, where a power of z grows with its rarity as it does between the first two points."""
    low, high = edges[0] ** power, edges[1] ** power
    slope = (high - low) / max(rarities[1] - rarities[0], 1e-3) * (1 + doubt)
    return float((high + slope * max(rarity - rarities[1], 0.0)) ** (1 / power))


@final
class UpperTail:
    """How high z is once in so many samples, from how often it is somewhat high.

    The highest 2 % are counted, not measured: the few bad samples that a corpus has would else say how far good ones reach.
    """

    def __init__(self) -> None:
        above = [math.erfc(edge / math.sqrt(2)) / 2 for edge in _EDGES.tolist()]
        self._counts = -np.diff(above, append=0.0) * _TAIL_BEFORE
        self._num_samples = _TAIL_BEFORE
        self._num_seen = 0

    def learn(self, z: NDArray[np.float64]) -> None:
        """Take in samples; what lies long back counts less and less."""
        places = np.searchsorted(_EDGES, z, "right") - 1
        self._counts += np.bincount(places[places >= 0], minlength=_TAIL_BINS)
        self._num_samples += len(z)
        self._num_seen += len(z)
        # Half of what was seen, at most: the beginning of a training is not like the rest.
        if self._num_samples > min(max(self._num_seen / 2, 2 * _TAIL_BEFORE), _TAIL_MEMORY):
            self._counts /= 2
            self._num_samples /= 2

    def reach(self, risk: float) -> float:
        """The z that a sample exceeds with this probability."""
        shares = np.cumsum(self._counts[::-1])[::-1] / self._num_samples
        places = [int(np.count_nonzero(shares >= share)) - 1 for share in _TAIL_SHARES]
        low = min(max(places[0], 1), _TAIL_BINS - 3)
        high = min(max(places[1], low + 1), _TAIL_BINS - 2)
        highest = max(places[2], high + 1)
        rarities = [-math.log(max(float(shares[place]), 1e-9)) for place in (low, high, highest)]
        edges = [float(_EDGES[place]) for place in (low, high, highest)]
        power = next(
            (one for one in _TAIL_POWERS if edges[2] <= _HEAVIER * _reached(rarities[2], edges, rarities, one)),
            _TAIL_POWERS[-1],
        )
        doubt = _DOUBT / math.sqrt(_TAIL_SHARES[1] * self._num_samples)
        return _reached(-math.log(risk), edges, rarities, power, doubt)

    def pack(self) -> list[Any]:
        """As plain data."""
        return [self._num_seen, self._num_samples, packed(self._counts)]

    def unpack(self, state: Sequence[Any]) -> None:
        """Back from plain data."""
        self._num_seen, self._num_samples = int(state[0]), float(state[1])
        self._counts = unpacked(state[2], np.float64, _TAIL_BINS)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class MatchedRule(WindowRule):
    """Judges standardised means of steps: usually 0, give or take 1."""

    num_deviations: float = 7.0
    """So many deviations above the median are a spike."""
    window: int = 128
    """Steps that median and deviation are over."""
    min_history: int = 32
    """Nothing is judged before there are so many."""

    def judge(self, state: Window, value: float) -> Score:
        """Judge a finite number."""
        if value < _SUSPICIOUS or len(state) < self.min_history:
            return NOTHING
        above = value - state.median
        z = above / max(_SIGMA_PER_MAD * state.median_deviation(), 1.0)
        return Score(SPIKE if z > self.num_deviations else GOOD, state.median, z)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSettings:
    """When a sample stands out, and how much is made of it."""

    risk: float = 1e-5
    """How often, per sample, noise alone may exceed the limit."""
    min_z: float = 4.8
    """The limit is never lower, in deviations of samples of that length."""
    max_z: float = 10_000.0
    """The limit is never higher."""
    max_share: float = 0.125
    """When more rows of a step stand out, one is always allowed, it is the step that is bad and no row by itself."""
    max_records: int = 4096
    """Records of samples that one rank writes in a run, at most; what comes after is only counted."""
    investigate_every: int = 1000
    """At most one sample in so many steps is worth an investigation at the scene."""
    matched_mean: MatchedRule | None = field(default_factory=MatchedRule)
    """How the mean of a step is judged with the lengths taken out; None leaves it alone."""

    def __post_init__(self) -> None:
        if not 0 < self.risk < 0.01:
            raise SettingError(f"risk is a small probability per sample, not {self.risk}")
        if not 0 < self.min_z <= self.max_z:
            raise SettingError(f"min_z ({self.min_z}) must be above 0 and at most max_z ({self.max_z})")
        if self.max_records < 0 or self.investigate_every < 1:
            raise SettingError(f"max_records is 0 or more, not {self.max_records}; investigate_every 1 or more, not {self.investigate_every}")  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SampleEvent:
    """Samples of a step that stand out."""

    step: int
    """The step."""
    rows: tuple[int, ...]
    """Their places in it, worst first."""
    z: tuple[float, ...]
    """How far each is above samples of its length, in deviations; infinite for a loss that is not finite."""
    expected: tuple[float, ...]
    """What samples of its length lose."""
    limit: float
    """How high z may be."""
    is_worth_a_look: bool
    """Is this the first in `investigate_every` steps?"""


@final
class SampleWatch:
    """Watches the samples of one rank. Call `observe` once a step."""

    def __init__(self, settings: SampleSettings | None = None) -> None:
        self.settings = settings or SampleSettings()
        self.model = LengthModel()
        self.limit = min(_FIRST_LIMIT, self.settings.max_z)
        """How high z may be now."""
        rule = self.settings.matched_mean
        self.mean = None if rule is None else EventDetector(rule, MATCHED_LOSS)
        """Judges the mean of a step."""
        self._tail = UpperTail()
        self._last_look = -self.settings.investigate_every
        self._ones = np.ones(0)

    def observe(
        self, step: int, losses: Numbers | list[float], lengths: Counts | list[int] | None
    ) -> tuple[NDArray[np.float64] | list[float], SampleEvent | None, Event | None]:
        """Take in one step: how far each sample is above its like, which stand out, and the event of the mean that begins.

        Both are arrays, or lists where there are few. `lengths` are kept for a while: nobody may write to them.
        """
        number = len(losses)
        if not number:
            return np.zeros(0), None, None
        model, z, root = self.model, self._z(lengths, losses), math.sqrt(number)
        if isinstance(z, list):
            highest, total = max(z), sum(z)
        else:
            highest, total = z.item(z.argmax()), z.dot(self._ones).item()
        found, good, scaled = None, z, total / root
        if not (highest <= self.limit and total == total):  # one may be NaN
            z = np.asarray(z)
            lengths = None if lengths is None else np.asarray(lengths)
            found, keep = self._look_closely(step, z, lengths)
            good = z[keep]
            root = math.sqrt(max(len(good), 1))
            scaled = float(good.sum()) / root
            # Rows that stand out by themselves are learnt from too: where good ones often do, the limit must rise.
            learnable = keep if found is None else np.isfinite(z)
            good = np.minimum(z[learnable], _WILDEST)
            lengths = None if lengths is None else lengths[learnable]
        model.follow((scaled if scaled < _FOLLOWED else min(scaled, max(_FOLLOWED, root / 2))) / root)
        learnt = model.learn(lengths, good)
        if learnt is not None:
            self._learn_tail(learnt)
        # Every eighth usual step is enough to know what is usual.
        mean = self.mean
        if mean is None or (scaled < _SUSPICIOUS and step & 7 and mean.open is None) or not model.is_ready:
            return z, found, None
        return z, found, mean.update(step, scaled)[1]

    def _z(self, lengths: Any, losses: Any) -> NDArray[np.float64] | list[float]:
        if type(losses) is list:
            return self.model.z_of_few(lengths, losses)
        if len(self._ones) != len(losses):
            self._ones = np.ones(len(losses))
        return self.model.z(lengths, losses)

    def _look_closely(
        self, step: int, z: NDArray[np.float64], lengths: Counts | None
    ) -> tuple[SampleEvent | None, NDArray[np.bool_]]:
        """Something is above the limit: the rows that stand out, and which others can be learnt from."""
        finite = np.isfinite(z)
        if not self.model.is_ready:
            return None, finite
        above = z if finite.sum() < _SMALL_BATCH else self._above_the_step(z, lengths, finite)
        keep = above <= self.limit
        rows = np.flatnonzero(~keep)
        if not 0 < len(rows) <= max(self.settings.max_share * len(z), 1):
            return None, keep
        scores = np.where(np.isnan(z), np.inf, z)
        rows = rows[np.argsort(-scores[rows], kind="stable")]
        is_worth_a_look = step - self._last_look >= self.settings.investigate_every
        if is_worth_a_look:
            self._last_look = step
        event = SampleEvent(
            step=step,
            rows=tuple(rows.tolist()),
            z=tuple(scores[rows].tolist()),
            expected=tuple(self.model.expected(None if lengths is None else lengths[rows], len(rows)).tolist()),
            limit=self.limit,
            is_worth_a_look=is_worth_a_look,
        )
        return event, keep

    def _above_the_step(
        self, z: NDArray[np.float64], lengths: Counts | None, finite: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """How far rows are above what their step as a whole has gone up by, in its own deviations where they are larger."""
        if float(np.median(z[finite])) * math.sqrt(len(z)) < _RISEN:
            return z
        scale = self.model.scale(lengths, len(z))
        risen = max(float(np.median((z * scale)[finite])), 0.0)
        above: NDArray[np.float64] = z - risen / scale
        spread = _SIGMA_PER_MAD * float(np.median(np.abs(above[finite])))
        return above / max(spread, 1.0)

    def _learn_tail(self, z: NDArray[np.float64]) -> None:
        if not self.model.is_ready:
            return
        self._tail.learn(z)
        settings = self.settings
        self.limit = min(max(self._tail.reach(settings.risk), settings.min_z), settings.max_z)

    def state_dict(self) -> dict[str, Any]:
        """Everything it knows, as plain data: 16 kB."""
        return {
            "model": self.model.state_dict(),
            "mean": self.mean.state_dict() if self.mean else None,
            "tail": self._tail.pack(),
            "limit": self.limit,
            "last_look": self._last_look,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Back from `state_dict`: the next step is judged as if nothing had been interrupted."""
        self.model.load_state_dict(state["model"])
        if self.mean is not None and state.get("mean"):
            self.mean.load_state_dict(state["mean"])
        self._tail.unpack(state["tail"])
        self.limit = float(state["limit"])
        self._last_look = int(state["last_look"])
