"""What happened in a curve, as findings: events, restarts, pauses, gradients that are no numbers.
Pure.

    judge(curve)     everything found, ordered by step

Every rule takes a curve and returns findings. A further one is a function and an entry in `RULES`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sonde.curves.clues import Guess, beginning, guesses, stays_up
from sonde.curves.curve_events import find_curve_events
from sonde.curves.loss_curves import LossCurve, Restart, joined
from sonde.curves.phrases import brief, points
from sonde.records.columns import Floats
from sonde.report.curve import Curve
from sonde.report.wording import duration, number
from sonde.spikes.detectors import DIVERGENCE, JUMP, NONFINITE, SPIKE, Event
from sonde.spikes.epoch_saw import epoch_saw
from sonde.spikes.parting import Series, parting
from sonde.spikes.quiet_rules import COLLAPSE, NO_PROGRESS, SAME_LOSS, QuietFinding, QuietWatch

RESTART: Final = "restart"
PAUSE: Final = "pause"
NORM: Final = "gradient_not_finite"
LOSS_KINDS: Final = frozenset({SPIKE, JUMP, DIVERGENCE, NONFINITE})
"""The kinds of findings that are events of the loss."""
ALARMS: Final = LOSS_KINDS | {NORM}
"""The kinds of findings that say that something went wrong, not only that something happened."""
_PAUSE_FACTOR: Final = 30.0
_PAUSE_SECONDS: Final = 600.0
_MIN_TIMES: Final = 8
_MAX_PAUSES: Final = 50
_MAX_REPLACED: Final = 20
_MAX_POINTS: Final = 50_000
"""Of longer curves, some points are judged for quiet failures."""
_NUM_DIGITS_READ: Final = 100
_NUM_RECENT: Final = 16
_NOISE: Final = 1.4826
_WORSE: Final = 3.0
"""A loss that is this many deviations higher after a restart is worse than before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that happened in a run."""

    kind: str
    """`spike`, `jump`, `divergence`, `nonfinite`, `restart`, `pause`, `gradient_not_finite`, or
    what a later rule adds.
    """
    first_step: int
    last_step: int
    num_points: int = 1
    """The number of points that it lasts."""
    value: float | None = None
    """The value at its first step."""
    expected: float | None = None
    """What the rule expected there."""
    peak: float | None = None
    peak_step: int | None = None
    z: float | None = None
    """How many deviations the first value is above what was expected."""
    title: str = ""
    """What happened, in a sentence."""
    probably: tuple[Guess, ...] = ()
    """What it probably is, the likeliest first."""
    has_verdict: bool = False
    """Whether `probably` is the verdict of a diagnosis."""
    is_replaced: bool = False
    """Whether a restart made these steps again, so that the curve no longer has it."""
    num_runs: int | None = None
    """In how many runs it occurs at the same step; None if there is one run only."""
    of_runs: int | None = None
    """How many runs share that step and this run's order of data."""

    @property
    def rise(self) -> float:
        """How far its peak is above what was usual, as a fraction of that; infinite if it is no
        number.
        """
        if self.peak is None or self.expected is None:
            return 0.0
        if not math.isfinite(self.peak):
            return math.inf
        return (self.peak - self.expected) / max(abs(self.expected), 1e-12)

    @property
    def is_alarm(self) -> bool:
        """Whether it says that something went wrong."""
        return self.kind in ALARMS


Rule = Callable[[LossCurve], list[Finding]]


def events_of_loss(curve: LossCurve) -> list[Finding]:
    """Find spikes, jumps, divergences and losses that are no numbers."""
    found = find_curve_events(curve.steps, curve.values, metric=curve.metric)
    return [finding_of_event(curve, event) for event in found]


def events_before_restarts(curve: LossCurve) -> list[Finding]:
    """Find the events of stretches that a restart made again: often its reason."""
    findings = []
    for old in curve.replaced[-_MAX_REPLACED:]:
        if not len(old):
            continue
        first = int(old.steps[0])
        before = curve.at(np.flatnonzero(curve.steps < first))
        attempt = joined(before, old)
        events = find_curve_events(attempt.steps, attempt.values, metric=curve.metric)
        findings += [
            replace(finding_of_event(attempt, event), is_replaced=True)
            for event in events
            if event.first_step >= first
        ]
    return findings


def restarts(curve: LossCurve) -> list[Finding]:
    """Find where the training was started again, and whether it went on as before."""
    noise = _noise(curve.as_curve())
    return [
        _restart_finding(restart, noise, is_new=restart.step <= int(curve.steps[0]))
        for restart in curve.restarts
    ]


def pauses(curve: LossCurve) -> list[Finding]:
    """Find where the log stood still for long: usually a restart that repeated no step."""
    times = curve.times
    known = np.flatnonzero(np.isfinite(times))
    if len(known) < _MIN_TIMES:
        return []
    gaps = np.diff(times[known])
    limit = max(_PAUSE_FACTOR * float(np.median(gaps)), _PAUSE_SECONDS)
    findings = []
    for place in np.flatnonzero(gaps > limit).tolist()[:_MAX_PAUSES]:
        last = int(curve.steps[known[place]])
        step = int(curve.steps[known[place + 1]])
        title = f"Nothing was logged for {duration(float(gaps[place]))} after step {number(last)}."
        guess = Guess(
            cause="resume",
            sentence="A restart, an evaluation or a waiting machine: the log does not say which.",
        )
        findings.append(
            Finding(kind=PAUSE, first_step=step, last_step=step, title=title, probably=(guess,))
        )
    return findings


def gradients_not_finite(curve: LossCurve) -> list[Finding]:
    """Find gradient norms that are NaN or infinite while the loss is a number."""
    seen_in_loss = set(curve.steps[~np.isfinite(curve.values)].tolist())
    steps = [step for step in curve.bad_norms if step not in seen_in_loss]
    if not steps:
        return []
    guess = Guess(
        cause="numerics",
        sentence="An overflow in the backward pass. With a loss scaler this is how it finds its"
        " scale; without one, the update that follows ruins the weights.",
    )
    return [
        Finding(
            kind=NORM,
            first_step=steps[0],
            last_step=steps[-1],
            num_points=len(steps),
            title=f"The gradient norm is not finite at {points(len(steps))}, first at step"
            f" {number(steps[0])}; the loss does not show it.",
            probably=(guess,),
        )
    ]


def quiet_failures(curve: LossCurve) -> list[Finding]:
    """Find losses that collapse or stand still, gradients that are nothing, rates of 0: what
    watches a training, asked about every point.
    """
    stride = max(1, len(curve) // _MAX_POINTS)
    watch = QuietWatch(silent=[SAME_LOSS] if _is_rounded(curve.values) else [])
    findings = []
    for place in range(0, len(curve), stride):
        norm = float(curve.norms[place])
        rate = float(curve.rates[place])
        quiet = watch.observe(place + 1, float(curve.values[place]), norm, rate, math.nan, math.nan)
        findings += [_quiet_finding(curve, found) for found in quiet]
    places = np.arange(1.0, len(curve) + 1)
    saw = epoch_saw(places, curve.epochs, curve.values, curve.rates)
    if saw is not None:
        findings.append(_quiet_finding(curve, saw))
    return findings


def training_and_validation(curve: LossCurve) -> list[Finding]:
    """Find a validation loss that rises while the training loss falls."""
    if curve.evaluation is None:
        return []
    training = Series(curve.steps.astype(np.float64), curve.values)
    evaluation = curve.evaluation
    found = parting(training, Series(evaluation.steps.astype(np.float64), evaluation.values))
    return [] if found is None else [_told(found, found.step)]


def _quiet_finding(curve: LossCurve, found: QuietFinding) -> Finding:
    return _told(found, int(curve.steps[found.step - 1]))


def _told(found: QuietFinding, step: int) -> Finding:
    sentence = f"{found.sentence[0].upper()}{found.sentence[1:]}."
    guess = Guess(cause="quiet", sentence=f"Look at {found.look_at}.")
    return Finding(
        kind=found.kind, first_step=step, last_step=step, title=sentence, probably=(guess,)
    )


def _is_rounded(values: Floats) -> bool:
    """Return whether a log prints few digits, so that equal values say nothing."""
    some = values[np.isfinite(values)][:_NUM_DIGITS_READ]
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.all(np.round(some, 4) == some))


RULES: Final[tuple[Rule, ...]] = (
    events_of_loss,
    events_before_restarts,
    restarts,
    pauses,
    gradients_not_finite,
    quiet_failures,
    training_and_validation,
)
"""Every rule. A further one is a function from a curve to findings and an entry here."""


def judge(curve: LossCurve) -> list[Finding]:
    """Return everything that happened in a curve, ordered by step.

    ```python
    from pathlib import Path

    from sonde.curves import find_sources, judge, loss_curve

    losses = [9.0 if step == 250 else 3.0 + step % 5 / 100 for step in range(400)]
    lines = [f"step {step} loss {loss}" for step, loss in enumerate(losses)]
    Path("train.log").write_text("\\n".join(lines))
    (source,) = find_sources("train.log")
    (finding,) = judge(loss_curve(source.points))
    assert (finding.kind, finding.first_step) == ("spike", 250)
    ```
    """
    found = [finding for rule in RULES for finding in rule(curve)]
    told = [finding for finding in found if not _is_echo(curve, finding, found)]
    return sorted(told, key=lambda finding: (finding.first_step, not finding.is_replaced))


def _is_echo(curve: LossCurve, finding: Finding, found: Sequence[Finding]) -> bool:
    """Return whether a finding only says again what an earlier one said: a loss that jumped and
    stays up makes no progress, one that collapsed to 0 is the same at every step.
    """
    earlier = [other for other in found if other.first_step < finding.first_step]
    if finding.kind == SAME_LOSS:
        return any(other.kind == COLLAPSE for other in earlier)
    if finding.kind != NO_PROGRESS:
        return False
    climbs = [other for other in earlier if other.kind in (JUMP, DIVERGENCE)]
    return any(_is_up_until(curve, climb, finding.first_step) for climb in climbs)


def _is_up_until(curve: LossCurve, climb: Finding, step: int) -> bool:
    """Return whether the loss is still up at a step, half of the way at least."""
    if climb.value is None or climb.expected is None:
        return False
    since = curve.values[curve.index(climb.first_step) : curve.index(step) + 1]
    recent = since[np.isfinite(since)][-_NUM_RECENT:]
    return bool(len(recent)) and float(np.median(recent)) > (climb.value + climb.expected) / 2


def finding_of_event(curve: LossCurve, event: Event) -> Finding:
    """Return an event as a finding, with what it probably is."""
    return Finding(
        kind=event.kind,
        first_step=event.first_step,
        last_step=event.last_step,
        num_points=event.num_bad,
        value=event.value,
        expected=None if math.isnan(event.baseline) else event.baseline,
        peak=event.peak,
        peak_step=event.peak_step,
        z=event.z if math.isfinite(event.z) else None,
        title=_title(curve, event),
        probably=guesses(curve, event),
    )


def _title(curve: LossCurve, event: Event) -> str:
    usual = "" if math.isnan(event.baseline) else f" where {brief(event.baseline)} is usual"
    if event.kind == NONFINITE:
        return f"The {_metric(event)} is {number(event.value)}{usual}, {_lasts(event)}."
    if event.kind == DIVERGENCE:
        since = int(curve.steps[beginning(curve, event)])
        return (
            f"The {_metric(event)} climbs from {brief(event.baseline)} around step"
            f" {number(since)} to {brief(event.peak)} at step {number(event.peak_step)}."
        )
    sentence = f"The {_metric(event)} is {brief(event.value)}{usual}"
    highest = f", at most {brief(event.peak)}" if event.peak > event.value else ""
    if stays_up(curve, event):
        return f"{sentence}{highest}, and stays up."
    return f"{sentence}, {_lasts(event)}{highest}."


def _lasts(event: Event) -> str:
    if event.num_bad == 1:
        return "for one point"
    return f"for {points(event.num_bad)} up to step {number(event.last_step)}"


def _metric(event: Event) -> str:
    return event.metric.replace("_", " ")


def _restart_finding(restart: Restart, noise: float, *, is_new: bool) -> Finding:
    step = number(restart.step)
    title = f"Started again: step {number(restart.last_step)} was followed by step {step}."
    cause = "resume"
    if is_new:
        title = f"Started over: step {number(restart.last_step)} was followed by step {step}."
        sentence = "Another training in the same log. The curve is that of the last one."
        cause = "none"
    elif restart.is_same:
        sentence = "A clean resume: the repeated steps have exactly the losses they had."
        cause = "none"
    elif not restart.num_again or math.isnan(restart.before + restart.after):
        sentence = "Whether it was a clean resume cannot be told: no step was repeated."
    elif restart.after - restart.before > _WORSE * max(noise, 1e-9):
        sentence = (
            f"Something was not restored: the repeated steps have a loss of"
            f" {brief(restart.after)}, before it was {brief(restart.before)}."
        )
    elif restart.before - restart.after > _WORSE * max(noise, 1e-9):
        sentence = (
            f"Going back helped: the repeated steps have a loss of {brief(restart.after)}, the"
            f" first time it was {brief(restart.before)}."
        )
        cause = "none"
    else:
        sentence = (
            f"A clean resume: the repeated steps have a loss of {brief(restart.after)},"
            f" {brief(restart.before)} the first time."
        )
        cause = "none"
    return Finding(
        kind=RESTART,
        first_step=restart.step,
        last_step=restart.last_step,
        num_points=restart.num_again,
        value=None if math.isnan(restart.after) else restart.after,
        expected=None if math.isnan(restart.before) else restart.before,
        title=title,
        probably=(Guess(cause=cause, sentence=sentence),),
    )


def _noise(curve: Curve) -> float:
    """Return the spread of a curve from one point to the next."""
    values = curve.finite().values
    if len(values) < 3:
        return 0.0
    with np.errstate(over="ignore"):
        return _NOISE * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
