"""Failures without a jump: losses that collapse or stand still, gradients that are nothing, rates
of 0 or off their course, steps that get slower or take far too long. Pure.

    QUIET_RULES          functions from a series of steps to a finding, or None
    QuietWatch           asks them about a training under way, each until it has spoken once

A quiet failure is told as a fact, with its figures: what it means, the check before a training
(`sonde check`) can find out by experiment. The rules need a long look back, so they are asked every
32 steps only: 2 to 3 µs a step.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

QUIET_FAILURE: Final = "quiet_failure"
"""The run event of such a failure: its `kind`, `step`, `sentence` and what to `look_at`."""
SAME_BATCH: Final = "same_batch"
"""The kind of a batch that comes again and again, which the recorder notices."""
SCALER_SKIPS: Final = "scaler_skips"
"""The kind of a gradient scaler that skips update after update, which the recorder notices."""
NO_OPTIMIZER_STEP: Final = "no_optimizer_step"
"""The kind of updates that end without a call of the optimizer, which the recorder notices."""
COLLAPSE: Final = "loss_collapse"
NO_PROGRESS: Final = "no_progress"
SAME_LOSS: Final = "same_loss"
NO_GRADIENT: Final = "no_gradient"
FADING_GRADIENT: Final = "fading_gradient"
NO_RATE: Final = "no_rate"
RATE_OFF_COURSE: Final = "rate_off_course"
SLOWER: Final = "slower"
LONG_STEPS: Final = "long_steps"

WINDOW: Final = 1024
"""How many steps the rules look back."""
_EVERY: Final = 32
"""How many steps pass between two looks."""
_SHORT: Final = 16
_LONG: Final = 64
_CLIFF: Final = 0.25
"""A loss collapses if it falls below this fraction of a level at which it had settled."""
_SETTLED: Final = 1.15
"""A level is settled if its first half is at most this many times its second half."""
_MIN_STEPS: Final = 400
"""Before this many steps no training is said to make no progress."""
_PROGRESS: Final = 0.005
"""Less than this fraction of the loss in all this time is no progress."""
_NUM_SAME: Final = 12
_NUM_ZERO: Final = 8
_FADED: Final = 1e-3
"""A gradient norm below this fraction of what it was has faded away."""
_STILL_HIGH: Final = 0.5
"""A loss above this fraction of what it was is not why the gradients are small."""
_RATE_JUMP: Final = 10.0
"""A learning rate that grows by this factor from one step to the next has jumped."""
_NEVER_SO_HIGH: Final = 3.0
"""A jump to less than this many times the highest rate so far may be a restart of the schedule."""
_VANISHED: Final = 1e-5
"""A rate below this fraction of its highest is next to nothing. A cosine is there for a fifth of a
per cent of its steps.
"""
_PAST_PEAK: Final = 0.9
"""A rate below this fraction of its highest is past its peak: no warm-up ends here."""
_LOSS_ROSE: Final = 1.1
_TROUGH: Final = 0.1
"""A rate below this fraction of its highest has come to the end of a schedule."""
_MIRRORED: Final = 1e-3
"""Rates that differ by less than this fraction of the highest are the same on both sides."""
_CURVED: Final = 0.25
"""How far a curve bends, as a fraction of its rise: a half for a cosine near its trough, 0 for a
line.
"""
_SLOWER: Final = 3.0
_LEAST_SECONDS: Final = 0.02
"""Steps that are faster than this are not called slow."""
_LONG_STEP: Final = 20.0
"""A step that takes this many times the usual time is long."""
_LONG_SECONDS: Final = 0.5
"""A shorter step is not called long."""
_NUM_LONG: Final = 3
"""So many long steps are told: one or two happen to every training."""
_MAX_LONG: Final = 24
"""So many long steps are compared with one another."""
_SAME_GAPS: Final = 0.2
"""Gaps that differ by less than this fraction are those of something that is done regularly."""


class StepSeries(NamedTuple):
    """The last steps of a training, oldest first. What is not known is NaN."""

    steps: Floats
    losses: Floats
    norms: Floats
    """Gradient norms before clipping."""
    rates: Floats
    """Learning rates."""
    seconds: Floats
    """How long each step took, with the wait for its data."""
    waits: Floats
    """How long each step waited for its data."""
    highest_rate: float = math.nan
    """The highest learning rate before these steps, 0 if there were none; NaN if not all of them
    were seen.
    """


_RATES: Final = StepSeries._fields.index("rates")


@dataclass(frozen=True, kw_only=True, slots=True)
class QuietFinding:
    """A failure that shows in no single step."""

    kind: str
    """The name of the rule."""
    step: int
    """The step at which it was noticed."""
    sentence: str
    """What was found, with its figures."""
    look_at: str
    """What to look at."""


Rule: TypeAlias = Callable[[StepSeries], "QuietFinding | None"]


def loss_collapse(series: StepSeries) -> QuietFinding | None:
    """Find a loss that falls off a cliff, far below where it had settled."""
    losses = series.losses
    if len(losses) < _SHORT + _LONG:
        return None
    before = losses[-_SHORT - _LONG : -_SHORT]
    level = _median(before)
    now = _median(losses[-_SHORT:])
    if not 0 <= now < _CLIFF * level:
        return None
    first_half = _median(before[: _LONG // 2])
    is_settled = 0 < first_half < _SETTLED * _median(before[_LONG // 2 :])
    if not is_settled or not np.isfinite(losses[-_SHORT - _LONG :]).all():
        return None
    if np.nanmin(losses) < 0:  # an objective that goes either way: near 0 is no end of it
        return None
    return QuietFinding(
        kind=COLLAPSE,
        step=int(series.steps[-1]),
        sentence=f"the loss fell from {level:.4g} to {now:.4g} within {_SHORT + _LONG} steps",
        look_at=(
            "a model that can see its targets (labels that are the inputs, a missing causal mask),"
            " or data that repeats"
        ),
    )


def no_progress(series: StepSeries) -> QuietFinding | None:
    """Find a loss that is where it was at the beginning, although rate and gradients are there."""
    losses = series.losses
    if len(losses) < _MIN_STEPS or series.steps[0] > _LONG:
        return None
    early = losses[_SHORT : _SHORT + _LONG]
    late = losses[-_LONG:]
    level = _median(early)
    now = _median(late)
    # If it rises, that is another story.
    if level <= 0 or not (1 - _PROGRESS) * level <= now <= (1 + 10 * _PROGRESS) * level:
        return None
    is_known = np.isfinite(early).all() and np.isfinite(late).all()
    if not is_known or np.any(series.rates[-_LONG:] <= 0):
        return None
    return QuietFinding(
        kind=NO_PROGRESS,
        step=int(series.steps[-1]),
        sentence=(
            f"the loss is {now:.4g}, and was {level:.4g} {len(losses) - _SHORT} steps before"
        ),
        look_at=(
            "whether the optimizer holds the parameters of this model, whether labels belong to"
            " inputs, and whether the learning rate is far too low or too high"
        ),
    )


def same_loss(series: StepSeries) -> QuietFinding | None:
    """Find a loss that is the same to the bit, step after step."""
    last = series.losses[-_NUM_SAME:]
    if len(last) < _NUM_SAME or not np.isfinite(last).all() or np.any(last != last[0]):
        return None
    return QuietFinding(
        kind=SAME_LOSS,
        step=int(series.steps[-1]),
        sentence=f"the loss has been exactly {last[0]:.6g} for {_NUM_SAME} steps",
        look_at="whether the weights change at all, and whether every step gets another batch",
    )


def no_gradient(series: StepSeries) -> QuietFinding | None:
    """Find gradients that are exactly zero."""
    last = series.norms[-_NUM_ZERO:]
    if len(last) < _NUM_ZERO or np.any(last != 0):
        return None
    return QuietFinding(
        kind=NO_GRADIENT,
        step=int(series.steps[-1]),
        sentence=f"the gradient norm has been 0 for {_NUM_ZERO} steps",
        look_at="whether the loss depends on the model: a detach, a no_grad, saturated outputs",
    )


def fading_gradient(series: StepSeries) -> QuietFinding | None:
    """Find gradients that have faded away while the loss is still high."""
    norms = series.norms
    if len(norms) < 4 * _LONG:
        return None
    early = _median(norms[_SHORT : _SHORT + _LONG])
    late = _median(norms[-_LONG:])
    if not 0 < late < _FADED * early:
        return None
    loss_then = _median(series.losses[_SHORT : _SHORT + _LONG])
    loss_now = _median(series.losses[-_LONG:])
    if not loss_now > _STILL_HIGH * loss_then > 0:
        return None
    return QuietFinding(
        kind=FADING_GRADIENT,
        step=int(series.steps[-1]),
        sentence=(
            f"the gradient norm fell from {early:.3g} to {late:.3g} while the loss is still"
            f" {loss_now:.4g}"
        ),
        look_at="dead units and saturated activations, and the size of the weights",
    )


def no_rate(series: StepSeries) -> QuietFinding | None:
    """Find a learning rate that stays at 0, or at next to nothing of what it was."""
    last = series.rates[-_SHORT:]
    if len(last) < _SHORT or np.isnan(last).any():
        return None
    highest = float(np.fmax(series.highest_rate, np.nanmax(series.rates)))
    most = float(np.abs(last).max())
    if most > _VANISHED * highest:
        return None
    amount = f"{most:.2g}" if most else "0"
    return QuietFinding(
        kind=NO_RATE,
        step=int(series.steps[-1]),
        sentence=f"the learning rate has been {amount} for {_SHORT} steps, so nothing is learnt",
        look_at="where the schedule ends, and whether the scheduler is stepped once per update",
    )


def rate_off_course(series: StepSeries) -> QuietFinding | None:
    """Find a learning rate that nobody plans: below 0, climbing back along the cosine that it came
    down, or at once far above all it had been.

    Schedules that step down, restart, cycle or warm up never do this. At the end of a warm-up at a
    constant rate the rate may jump too: then it is told only if the loss rose.
    """
    rates = series.rates
    last = rates[-_NUM_ZERO:]
    if len(last) == _NUM_ZERO and np.all(last < 0):
        return _off_course(series, f"the learning rate is below 0: {last[-1]:.3g}")
    trough = _trough_of_cosine(rates)
    if trough is not None:
        return _off_course(
            series,
            f"the learning rate fell to {rates[trough]:.3g} at step {int(series.steps[trough])} and"
            " climbs back the way it came: CosineAnnealingLR does so when it is stepped more than"
            " T_max times",
        )
    with np.errstate(invalid="ignore"):
        jumps = np.flatnonzero((rates[:-1] > 0) & (rates[1:] >= _RATE_JUMP * rates[:-1]))
    if not len(jumps):
        return None
    place = int(jumps[-1]) + 1
    before = rates[:place]
    after = rates[place:]
    if len(before) < _LONG or len(after) < _SHORT:
        return None
    highest = float(np.maximum(series.highest_rate, np.nanmax(before)))
    is_new = _median(after[:_SHORT]) > _NEVER_SO_HIGH * highest  # False if it is not known
    is_past_peak = before[-1] < _PAST_PEAK * highest
    loss_before = _median(series.losses[place - _SHORT : place])
    has_risen = _median(series.losses[place : place + _SHORT]) > _LOSS_ROSE * loss_before > 0
    if not is_new or not (is_past_peak or has_risen):
        return None
    return _off_course(
        series,
        f"the learning rate jumped from {before[-1]:.3g} to {after[0]:.3g}, and had never been"
        f" above {highest:.3g}",
    )


def _trough_of_cosine(rates: Floats) -> int | None:
    """Return the place at which a rate that fell along a cosine turned and began to climb back;
    None if it did not.
    """
    first = max(len(rates) - 2 * _EVERY, _SHORT)  # earlier ones were looked at before
    if len(rates) < first + _SHORT + 1 or np.isnan(rates).any():
        return None
    trough = first + int(np.argmin(rates[first:-_SHORT]))
    down = rates[trough - _SHORT : trough + 1][::-1]
    up = rates[trough : trough + _SHORT + 1]
    highest = float(rates.max())
    is_mirrored = bool(np.all(np.abs(up - down) <= _MIRRORED * highest))
    if up[0] > _TROUGH * highest or not is_mirrored or not np.all(np.diff(up) > 0):
        return None
    rise = up[-1] - up[0]
    bend = up[-1] - 2 * up[_SHORT // 2] + up[0]
    return trough if bend > _CURVED * rise else None


def _off_course(series: StepSeries, sentence: str) -> QuietFinding:
    return QuietFinding(
        kind=RATE_OFF_COURSE,
        step=int(series.steps[-1]),
        sentence=sentence,
        look_at="the schedule: how many steps it was made for, and who else sets the rate",
    )


def slower(series: StepSeries) -> QuietFinding | None:
    """Find steps that take far longer than they did, and for a long time."""
    block = 2 * _LONG
    seconds = series.seconds
    if len(seconds) < 3 * block:
        return None
    now = _median(seconds[-block:])
    if not now >= _LEAST_SECONDS:
        return None
    blocks = seconds[len(seconds) % block :].reshape(-1, block)
    fastest = float(np.sort(blocks[:-1], axis=1)[:, _LONG].min())
    if not now >= _SLOWER * fastest:
        return None
    waited = _median(series.waits[-block:])
    return QuietFinding(
        kind=SLOWER,
        step=int(series.steps[-1]),
        sentence=(
            f"a step takes {now:.3g} s, and took {fastest:.3g} s; {waited:.3g} s of it is waiting"
            " for data"
        ),
        look_at="the loader if the wait grew; otherwise what else uses the machine, and memory",
    )


def long_steps(series: StepSeries) -> QuietFinding | None:
    """Find single steps that take far too long, again and again, but not at regular intervals: an
    evaluation, a checkpoint and the end of an epoch are regular.
    """
    if len(series.seconds) < 4 * _LONG or not np.any(series.seconds > _LONG_SECONDS):
        return None
    began = series.steps > _LONG  # the first steps of a training compile and fill caches
    waits = series.waits
    works = series.seconds - waits
    usual = float(np.nanmedian(series.seconds)) if np.isfinite(series.seconds).any() else math.inf
    limit = max(_LONG_STEP * usual, _LONG_SECONDS)
    for what, seconds in (("for its data", waits), ("in the step itself", works)):
        places = np.flatnonzero((seconds > limit) & began)[-_MAX_LONG:]
        irregular = _without_regular(_without_regular(places))
        if len(irregular) < _NUM_LONG:
            continue
        spent = "waited" if seconds is waits else "spent"
        longest = int(irregular[np.argmax(seconds[irregular])])
        return QuietFinding(
            kind=LONG_STEPS,
            step=int(series.steps[-1]),
            sentence=(
                f"{len(irregular)} steps took more than {_LONG_STEP:.0f} times the usual"
                f" {usual:.3g} s; step {int(series.steps[longest])} took"
                f" {series.seconds[longest]:.3g} s, of which it {spent} {seconds[longest]:.3g} s"
                f" {what}"
            ),
            look_at=(
                "the storage and the workers of the loader if it waited for data; otherwise shapes"
                " that are compiled anew, and what else uses the machine"
            ),
        )
    return None


def _without_regular(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return places without the largest regular series among them."""
    if len(places) < _NUM_LONG:
        return places
    gaps = np.diff(places)
    if np.ptp(gaps) <= _SAME_GAPS * np.median(gaps):
        return places[:0]
    best = np.zeros(len(places), bool)
    for period in np.unique(places[:, None] - places[None, :]):
        if period < _SHORT // 2:
            continue
        for start in places[:_NUM_LONG]:
            is_regular = (places - start) % period == 0
            if is_regular.sum() > max(best.sum(), _NUM_LONG - 1):
                best = is_regular
    return places[~best]


QUIET_RULES: Final[tuple[Rule, ...]] = (
    loss_collapse,
    no_progress,
    same_loss,
    no_gradient,
    fading_gradient,
    no_rate,
    rate_off_course,
    slower,
    long_steps,
)
"""Every rule. A further one is a function from a series to a finding and an entry here."""


class QuietWatch:
    """Asks the rules about a training under way."""

    def __init__(self, silent: Iterable[str] = ()) -> None:
        """`silent` are the kinds that were told before, in an earlier start of the run."""
        self._columns = np.full((6, WINDOW), math.nan)
        self._num = 0
        self._highest_rate = math.nan
        self._new: list[tuple[float, ...]] = []
        self._silent = set(silent)

    def observe(
        self, step: int, loss: float, norm: float | None, rate: float, seconds: float, wait: float
    ) -> list[QuietFinding]:
        """Add a step, and return what is found for the first time."""
        self._new.append((step, loss, math.nan if norm is None else norm, rate, seconds, wait))
        if len(self._new) < _EVERY:
            return []
        # _EVERY divides WINDOW, so a block never goes round the end.
        place = self._num % WINDOW
        if not self._num:
            saw_beginning = self._new[0][0] <= _LONG
            self._highest_rate = 0.0 if saw_beginning else math.nan
        elif self._num >= WINDOW:
            leaving = self._columns[_RATES, place : place + _EVERY]
            self._highest_rate = float(np.maximum(self._highest_rate, np.fmax.reduce(leaving)))
        self._columns[:, place : place + _EVERY] = np.array(self._new).T
        self._num += _EVERY
        self._new.clear()
        series = self._series()
        found = []
        for rule in QUIET_RULES:
            finding = rule(series)
            if finding is not None and finding.kind not in self._silent:
                self._silent.add(finding.kind)
                found.append(finding)
        return found

    def start_over(self) -> None:
        """Forget the steps, because the training went back or another one began."""
        self._num = 0
        self._new.clear()

    def _series(self) -> StepSeries:
        """Return the last steps, oldest first."""
        columns = self._columns[:, : self._num]
        if self._num > WINDOW:
            first = self._num % WINDOW
            columns = np.concatenate([self._columns[:, first:], self._columns[:, :first]], 1)
        return StepSeries(*columns)._replace(highest_rate=self._highest_rate)


def _median(values: Floats) -> float:
    """Return the median of a few numbers; sorting costs a tenth of `np.median` here."""
    return float(np.sort(values)[len(values) // 2])
