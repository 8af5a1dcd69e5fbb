"""What the curves around an event say about it: the learning rate, the gradient norm, the epoch, a
restart, and how the loss went on. Each clue is a pure function from a curve and an event to a
guess, or None. The first that answers is the likeliest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from sonde.curves.loss_curves import LossCurve
from sonde.curves.phrases import brief, points
from sonde.report.wording import number
from sonde.spikes.detectors import DIVERGENCE, JUMP, NONFINITE, Event

NEAR: Final = 8
"""A restart or a change of the learning rate is near an event if it is at most this many points
before.
"""
_USUAL_POINTS: Final = 64
_RATE_ROSE: Final = 1.5
_NORM_ROSE: Final = 3.0
_FEW: Final = 3
"""An event of at most this many points is short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """What an event probably is."""

    cause: str
    """A name that does not change: `resume`, `learning_rate`, `state`, `batch`, `data`,
    `new_epoch`, `numerics`, `quiet` (a failure without a jump), `none` (nothing is wrong) or
    `unknown`.
    """
    sentence: str
    """The guess, and what speaks for it."""
    names_sample: bool = False
    """Whether the sentence names a single sample."""


def beginning(curve: LossCurve, event: Event) -> int:
    """Return the place where an event began. A climb is noticed late: it began where the loss was
    last as low as it had been.
    """
    at = curve.index(event.first_step)
    if event.kind != DIVERGENCE:
        return at
    low = np.flatnonzero(curve.values[:at] <= event.baseline)
    return int(low[-1]) if len(low) else at


def stays_up(curve: LossCurve, event: Event) -> bool:
    """Return whether the loss never comes back half of the way after an event of many points."""
    after = curve.values[curve.index(event.last_step) + 1 :]
    finite = after[np.isfinite(after)]
    if event.kind != JUMP or not len(finite) or math.isnan(event.baseline):
        return event.kind == JUMP and not len(finite)
    return bool(finite.min() > (event.baseline + event.value) / 2)


Clue = Callable[[LossCurve, Event], Guess | None]


def restart_near(curve: LossCurve, event: Event) -> Guess | None:
    """Was the training started again shortly before?"""
    at = beginning(curve, event)
    for restart in curve.restarts:
        distance = at - curve.index(restart.step)
        if 0 <= distance <= NEAR:
            return Guess(
                cause="resume",
                sentence=f"The restart at step {number(restart.step)}: something was not restored."
                " Weights, optimizer, schedule, data position or random state.",
            )
    return None


def rate_rose(curve: LossCurve, event: Event) -> Guess | None:
    """Did the learning rate jump, or is it still being warmed up?"""
    at = beginning(curve, event)
    rates = curve.rates[max(at - NEAR, 0) : at + 1]
    places = [
        place for place in range(1, len(rates)) if np.isfinite(rates[place - 1 : place + 1]).all()
    ]
    for place in places:
        before = float(rates[place - 1])
        after = float(rates[place])
        if not 0 < before * _RATE_ROSE < after:
            continue
        if at < 2 * NEAR:
            return Guess(
                cause="learning_rate",
                sentence=f"The learning rate, which is still warming up: {brief(before)} to"
                f" {brief(after)} from one point to the next. It may rise too fast.",
            )
        step = int(curve.steps[max(at - NEAR, 0) + place])
        return Guess(
            cause="learning_rate",
            sentence=f"The learning rate: it jumped from {brief(before)} to {brief(after)} at step"
            f" {number(step)}.",
        )
    return None


def norm_rose_first(curve: LossCurve, event: Event) -> Guess | None:
    """Did the gradient norm rise before the loss did?"""
    at = beginning(curve, event)
    usual = _usual_norm(curve, at - NEAR)
    before = curve.norms[max(at - NEAR, 0) : at]
    if math.isnan(usual) or not np.isfinite(before).any():
        return None
    highest = float(np.nanmax(before))
    if highest < _NORM_ROSE * usual:
        return None
    step = int(curve.steps[max(at - NEAR, 0) + int(np.nanargmax(before))])
    return Guess(
        cause="state",
        sentence=f"The state of the model, not this batch: the gradient norm was {brief(highest)}"
        f" at step {number(step)} already, where {brief(usual)} is usual. A lower rate or tighter"
        " clipping is the usual cure.",
    )


def not_finite(curve: LossCurve, event: Event) -> Guess | None:
    """Is the loss NaN or infinite: for good, or once?"""
    if event.kind != NONFINITE:
        return None
    at = curve.index(event.first_step)
    rest = curve.values[at:]
    before = curve.values[max(at - NEAR, 0) : at]
    was_rising = len(before) > 2 and bool(before[-1] > 1.2 * np.median(before))
    if np.isfinite(rest).any():
        return Guess(
            cause="numerics",
            sentence="An overflow, or a batch without targets. The weights survived, because later"
            " losses are numbers again.",
        )
    if was_rising:
        return Guess(
            cause="state",
            sentence="A divergence that ended in overflow: the loss was rising before. The weights"
            f" are lost; those from before step {number(event.first_step)} can be used.",
        )
    return Guess(
        cause="numerics",
        sentence="An overflow or a division by zero, without warning: the loss was normal until"
        " then. The weights are lost from here on, because no later loss is a number.",
    )


def new_epoch(curve: LossCurve, event: Event) -> Guess | None:
    """Does an epoch begin there?"""
    at = curve.index(event.first_step)
    pair = curve.epochs[max(at - 1, 0) : at + 1]
    if len(pair) < 2 or not np.isfinite(pair).all() or math.floor(pair[0]) == math.floor(pair[1]):
        return None
    return Guess(
        cause="new_epoch",
        sentence=f"The data order: epoch {math.floor(pair[1])} begins here. A sampler that starts"
        " again, sorted data, or the odd last batch of an epoch.",
    )


def shape(curve: LossCurve, event: Event) -> Guess | None:
    """How did the loss go on?"""
    if event.kind == NONFINITE:
        return None
    if event.kind == DIVERGENCE:
        return Guess(
            cause="learning_rate",
            sentence="The learning rate, or a state that went bad slowly: the loss climbs in many"
            " small steps and not at once.",
        )
    at_end = curve.index(event.last_step)
    is_last = at_end >= len(curve) - _FEW
    if stays_up(curve, event):
        return Guess(
            cause="state",
            sentence="The weights, or other data from here on: the loss does not come back, as it"
            " would after a bad batch.",
        )
    if event.num_bad <= _FEW and not is_last:
        return Guess(
            cause="batch",
            sentence=f"{_batches(curve)}{_norm_beside(curve, event)} The loss is back at once, so"
            " the weights took no harm.",
        )
    if event.num_bad <= _FEW:
        return Guess(
            cause="unknown",
            sentence="Not known yet: the log ends here. A batch comes and goes; a broken state"
            " stays.",
        )
    return Guess(
        cause="state",
        sentence=f"An update that did harm: the loss needed {points(event.num_bad)} to come back. A"
        " bad batch, or a rate too high for it.",
    )


CLUES: Final[tuple[Clue, ...]] = (
    restart_near,
    not_finite,
    rate_rose,
    norm_rose_first,
    shape,
    new_epoch,
)
"""Every clue, the most telling first. A further one is a function above and an entry here."""


def guesses(curve: LossCurve, event: Event) -> tuple[Guess, ...]:
    """Return what an event probably is, the likeliest first, at most two."""
    found = [guess for clue in CLUES if (guess := clue(curve, event)) is not None]
    return tuple(found[:2]) if found[0].cause != found[-1].cause else tuple(found[:1])


def _usual_norm(curve: LossCurve, end: int) -> float:
    before = curve.norms[max(end - _USUAL_POINTS, 0) : max(end, 0)]
    return float(np.nanmedian(before)) if np.isfinite(before).sum() >= NEAR else math.nan


def _batches(curve: LossCurve) -> str:
    return "The batch" if curve.spacing == 1 else "A batch, or a few"


def _norm_beside(curve: LossCurve, event: Event) -> str:
    at = curve.index(event.first_step)
    usual = _usual_norm(curve, at)
    here = float(curve.norms[at])
    if not math.isfinite(usual * here):
        return f": it lasts {points(event.num_bad)}."
    if here >= _NORM_ROSE * usual:
        return f": the gradient norm jumps with it, {brief(here)} where {brief(usual)} is usual."
    return f": the gradient norm stays at {brief(here)}, so it was hard but pushed little."
