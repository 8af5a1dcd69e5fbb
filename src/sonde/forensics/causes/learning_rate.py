"""The learning rate jumped, is too high for training to stay stable, or was too high from the
start.

None of this shows in a single step. A jump is in the records, and the steps since are replayed
without it. A rate that is too high shows in losses that rise and stay high, and the steps are
replayed at a lower one.
"""

import math
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from sonde.errors import SondeError
from sonde.forensics.case import Case
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.scene_evidence import SceneEvidence
from sonde.forensics.seams import Row
from sonde.forensics.tensor_test import first_weights
from sonde.records.journal import StepRecord
from sonde.spread import Spread

_WINDOW: Final = 60
"""How many steps after a jump the rate may still be to blame, and how many steps are replayed at
most.
"""
_RATIO: Final = 1.8
"""A rise by this factor between two steps is a jump."""
_SCENE_RATIO: Final = 3.0
"""At the scene, where no other rate can be tried, only a rise by this factor is a jump."""
_PLAIN_RATIO: Final = 5.0
"""A rise by this factor is not due to a schedule, whether or not the loss shows it yet."""
_AS_BEFORE: Final = 1.05
"""A rate that jumps no higher than this many times the highest so far may be a warm restart."""
_RESTARTED: Final = 0.45
"""The most that such a jump counts: schedules do it on purpose."""
_WARM: Final = 10
"""Jumps in the first steps are normal during warm-up."""
_LEAST_EXCESS: Final = 2.0
"""A loss fewer deviations above normal than this is not explained by the learning rate."""
_GONE: Final = 0.5
"""The rate is to blame if this fraction of the excess loss disappears without it."""
_LOWER: Final = 0.2
"""The lower rate to try, as a fraction of the recorded one."""
_RISE: Final = 4.0
_LEAST_HIGH: Final = 6
"""A training diverges if the loss is `_RISE` deviations higher for this many steps."""
_RECENT: Final = 8
"""The number of steps, up to the one in question, that define the recent level."""
_LEVEL: Final = 16
"""The number of steps that define one earlier level."""
_BEFORE: Final = 400
"""How many steps before the recent ones are searched for the lowest level."""
_NUM_LATER: Final = 8
_UNLEARNT: Final = 0.95
"""A training may be stuck if its loss is above this fraction of the unigram entropy of the
tokens.
"""
_PROGRESS: Final = 0.97
"""A stuck training has a loss above this fraction of that at half as many steps."""
_LEAST_STEPS: Final = 200
"""Before this many steps, no training is considered stuck."""
_NUM_IN_CONTEXT: Final = 64
_OF_CONTEXT: Final = 0.02
"""A stuck training gains less than this fraction of its loss from the order of tokens and the right
source.
"""
_NUM_FIRST: Final = 20
_LARGE_MOVE: Final = 0.5
"""Adam moves every weight by about the learning rate, which must stay below this fraction of the
weights' size.
"""


class Trend(NamedTuple):
    """The losses around a step."""

    recent: float
    """The median loss of the last few steps including this one, with those that are not finite as
    the highest.
    """
    lowest: float
    """The lowest earlier level; NaN if there is none."""
    lowest_step: int
    """The step at which the lowest level was reached."""
    rise: float
    """How far the recent level is above the lowest one, in deviations of the losses there."""
    num_high: int
    """The number of consecutive steps up to this one that are clearly above the lowest level."""
    stays_high: bool
    """Whether most steps after this one are as high."""


class _Level(NamedTuple):
    """The losses of a few successive steps."""

    median: float
    deviation: float
    step: int
    """The step in their middle."""


def trend_of(case: Case) -> Trend:
    """Return the trend around the step."""
    so_far = [record for number, record in case.steps.items() if number <= case.step]
    losses = [record.loss for record in so_far]
    last_losses = sorted(loss if math.isfinite(loss) else math.inf for loss in losses[-_RECENT:])
    recent = last_losses[len(last_losses) // 2]
    lowest = _lowest_level(so_far)
    limit = lowest.median + 3 * lowest.deviation
    after = range(case.step + 1, case.step + 1 + _NUM_LATER)
    later = [case.steps[step].loss for step in after if step in case.steps]
    num_later_high = sum(not loss < limit for loss in later)
    return Trend(
        recent=recent,
        lowest=lowest.median,
        lowest_step=lowest.step,
        rise=(recent - lowest.median) / lowest.deviation,
        num_high=_num_high(losses, limit),
        stays_high=bool(later) and num_later_high >= 0.6 * len(later),
    )


def _lowest_level(records: Sequence[StepRecord]) -> _Level:
    """Return the lowest level before the recent steps; NaN if there is none."""
    lowest = _Level(math.nan, math.nan, 0)
    start = max(0, len(records) - _RECENT - _BEFORE)
    for first in range(start, len(records) - _RECENT - _LEVEL + 1, _LEVEL // 2):
        spread = Spread([record.loss for record in records[first : first + _LEVEL]])
        if len(spread) and not spread.median >= lowest.median:
            middle = records[first + _LEVEL // 2]
            lowest = _Level(spread.median, spread.deviation, middle.step)
    return lowest


def _num_high(losses: Sequence[float], limit: float) -> int:
    """Return how many of the last losses are not below a limit; 0 without a limit."""
    if math.isnan(limit):
        return 0
    num_high = 0
    for loss in reversed(losses):
        if loss < limit:
            break
        num_high += 1
    return num_high


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the rate jumped, the training diverges, or it never began to learn."""
    judged = [_jumped(evidence), _diverging(evidence), _never_learnt(evidence)]
    found = [finding for finding in judged if finding is not None]
    return max(found, key=lambda finding: finding.score, default=None)


def is_stuck(evidence: Evidence) -> bool:
    """Return whether the training has learnt no more than token frequencies."""
    entropy = evidence.token_entropy
    case = evidence.case
    trend = trend_of(evidence.case)
    if math.isnan(entropy) or case.step < _LEAST_STEPS or trend.recent < _UNLEARNT * entropy:
        return False
    middle = [
        case.steps[number].loss
        for number in range(case.step // 2 - 8, case.step // 2 + 8)
        if number in case.steps
    ]
    if not middle or trend.recent < _PROGRESS * sorted(middle)[len(middle) // 2]:
        return False
    return (
        not evidence.once("context", lambda: _context_helps(evidence)) > _OF_CONTEXT * trend.recent
    )


def describe_frequencies(evidence: Evidence) -> str:
    """Compare the loss with that of a model that knows only how frequent tokens are."""
    known = f"knowing the frequencies of tokens alone would give {evidence.token_entropy:.4g}"
    return f"the loss is {trend_of(evidence.case).recent:.4g}: {known}"


def _context_helps(evidence: Evidence) -> float:
    """Return how much the context of tokens reduces their loss; NaN if no batches can be built to
    test it.
    """
    corpus = evidence.corpus
    lab = evidence.lab
    dice = random.Random(0)
    rows = [] if corpus is None else [row for row in corpus.some(_NUM_IN_CONTEXT) if row.target]
    others = [
        Row(
            row.name,
            (*dice.sample(row.target[:-1], len(row.target) - 1), *row.target[-1:]),
            other.source,
        )
        for row, other in zip(rows, [*rows[1:], *rows[:1]], strict=True)
    ]
    batches = [] if corpus is None or not rows else [corpus.batch(some) for some in (rows, others)]
    if not batches or any(batch is None for batch in batches):
        return math.nan
    own, other = (lab.replay.loss(batches=[batch]).loss for batch in batches)
    done = f"{len(rows)} samples, and their tokens in another order"
    if evidence.has_sources:
        done += ", after other sources"
    lab.note(
        "has it learnt anything?",
        done,
        f"the loss is {own:.4g}, and {other:.4g}",
        own=own,
        other=other,
    )
    return other - own


def first_jump(case: Case) -> tuple[StepRecord, float] | None:
    """Return the first step of the last `_WINDOW` ones at which the rate jumped, and the rate
    before it.
    """
    for step in range(max(case.step - _WINDOW, _WARM) + 1, case.step + 1):
        before = case.steps.get(step - 1)
        now = case.steps.get(step)
        if before is None or now is None or not before.lr > 0:
            continue
        if now.lr / before.lr >= _RATIO:
            return now, before.lr
    return None


def _jumped(evidence: Evidence) -> CauseFinding | None:
    found = first_jump(evidence.case)
    if found is None:
        return None
    jump, rate_before = found
    sentences = [
        (
            f"at step {jump.step} it went from {rate_before:.3g} to {jump.lr:.3g},"
            f" {jump.lr / rate_before:.3g} times as much"
        )
    ]
    scheduled = evidence.lab.replay.seams.updater.scheduled_rate(jump.step)
    setting = "lr"
    if scheduled is not None and abs(scheduled - jump.lr) > 1e-6 * jump.lr:
        sentences.append(f"the schedule says {scheduled:.3g} there")
        setting = "schedule"
    score, bad_checkpoint = _without_jump(evidence, jump, rate_before, sentences)
    earlier = [record.lr for number, record in evidence.case.steps.items() if number < jump.step]
    if jump.lr <= _AS_BEFORE * max(earlier, default=0.0):
        sentences.append("it had been as high before: a schedule that restarts does this")
        score = min(score, _RESTARTED)
    return CauseFinding(
        score=score, evidence=sentences, setting=setting, bad_checkpoint=bad_checkpoint
    )


def _without_jump(
    evidence: Evidence, jump: StepRecord, rate_before: float, sentences: list[str]
) -> tuple[float, int | None]:
    """Return the score of a jump, and the checkpoint that is bad if the loss is normal without it.
    Adds what was found to `sentences`.
    """
    case = evidence.case
    recorded = evidence.case.record.loss
    is_plain = jump.lr >= _PLAIN_RATIO * rate_before
    if jump.step >= case.step:
        sentences.append(
            "a rate acts from the next step on: it cannot have raised the loss of this one"
        )
        return 0.6 if is_plain and not case.is_loss_unusual else 0.2, None
    if jump.step < evidence.lab.replay.first_step:
        sentences.append("no state from before that was kept, so it cannot be tried without")
        return 0.5 if is_plain else 0.15, None
    words = f"a learning rate of {rate_before:.3g}, as before the jump"
    loss = evidence.lab.replay_with(jump.step, rate=lambda _: rate_before, words=words)
    excess = recorded - evidence.normal_before(jump.step)
    if math.isfinite(excess) and excess < _LEAST_EXCESS * case.losses.deviation:
        sentences.append(
            f"the loss of step {case.step} is not above normal: {recorded:.4g}, and {loss:.4g} with"
            " the rate as it was"
        )
        return 0.75 if is_plain else 0.1, None
    gone = 1.0 if not math.isfinite(recorded) else (recorded - loss) / excess
    sentences.append(
        f"with the rate as it was the loss of step {case.step} is {loss:.4g} instead of"
        f" {recorded:.4g}"
    )
    if math.isfinite(loss) and gone > _GONE:
        return 0.7 + 0.27 * min(gone, 1.0), jump.step
    if not is_plain:
        return 0.15, None
    if not case.is_loss_unusual:
        return 0.75, None
    return 0.5 if trend_of(case).stays_high else 0.15, None


def _diverging(evidence: Evidence) -> CauseFinding | None:
    """Judge whether a rising loss, or a bad state, would have been avoided by a lower rate."""
    trend = trend_of(evidence.case)
    case = evidence.case
    rising = trend.rise > _RISE and trend.num_high >= _LEAST_HIGH
    if not (rising or evidence.is_state_bad) or evidence.made.differs or evidence.has_bad_tensors:
        return None
    since = max(
        case.step - _WINDOW, min(trend.lowest_step, case.step - 8), evidence.lab.replay.first_step
    )
    sentences = [
        (
            f"the loss was {trend.lowest:.4g} around step {trend.lowest_step} and is"
            f" {trend.recent:.4g} now"
        ),
        f"it has been high for {trend.num_high} steps",
        evidence.describe_rate(),
    ]
    lower = evidence.lab.replay_with(
        since,
        rate=lambda step: _LOWER * case.steps[step].lr if step in case.steps else 0.0,
        words=f"{_LOWER:.0%} of the learning rate",
    )
    recorded = case.record.loss
    now = min(recorded, trend.recent)
    normal = trend.lowest if math.isfinite(trend.lowest) else case.losses.median
    gone = 1.0 if not math.isfinite(now) else (now - lower) / max(now - normal, 1e-9)
    if not math.isfinite(lower) or gone < _GONE:
        sentences.append(
            f"at a fifth of the rate since step {since} the loss would be {lower:.4g} all the same"
        )
        return CauseFinding(score=0.2, evidence=sentences, setting="lr", title=_TOO_HIGH)
    sentences.append(f"at a fifth of the rate since step {since} the loss would be {lower:.4g}")
    # A change of the config or a bad batch is also possible; several high steps in a row speak
    # against a batch.
    score = 0.8 if rising and not evidence.recent_changes else 0.5
    return CauseFinding(
        score=score, evidence=sentences, setting="lr", title=_TOO_HIGH, bad_checkpoint=since
    )


def _never_learnt(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the first updates moved the weights by as much as their size, so that nothing
    of them was left.
    """
    case = evidence.case
    rates = {
        number: case.steps[number].lr for number in range(1, _NUM_FIRST + 1) if number in case.steps
    }
    if not rates or "adam" not in type(evidence.lab.replay.optimizer).__name__.lower():
        return None
    try:
        sizes = evidence.once("first weights", lambda: first_weights(evidence.lab))
    except SondeError:
        return None  # runs of other trainers may not have kept their beginning
    step = max(rates, key=rates.__getitem__)
    size = sizes[len(sizes) // 2] if sizes else 0.0
    if rates[step] < _LARGE_MOVE * size or size <= 0:
        return None
    sentences = [
        f"at step {step} the rate was {rates[step]:.3g}, and Adam moves weights by about that",
        f"it is {rates[step] / size:.2g} times their size at the beginning, {size:.2g}",
        evidence.describe_rate(),
    ]
    if is_stuck(evidence):
        sentences.append(describe_frequencies(evidence))
    return CauseFinding(
        score=0.85, evidence=sentences, setting="lr", title=_NEVER, bad_checkpoint=1
    )


def judge_scene(scene: SceneEvidence) -> CauseFinding | None:
    """Judge whether the rate jumped in the last steps and other batches are worse since."""
    if not scene.is_state_bad:
        return None
    earlier = zip(scene.rates, scene.rates[1:], strict=False)
    for (_, before), (step, rates) in reversed(list(earlier)):
        jump = None if step >= scene.step else _jump(before, rates)
        is_known = max(rates, default=0.0) <= _AS_BEFORE * scene.highest_rate
        if jump is not None and not is_known:
            sentences = [f"{jump} at step {step}", scene.describe_state()]
            return CauseFinding(score=0.85, evidence=sentences, setting="lr", bad_checkpoint=step)
    return None


def _jump(before: Sequence[float], rates: Sequence[float]) -> str | None:
    """Describe the first rate of a group that jumped between two steps; None if none did."""
    for number, (old, new) in enumerate(zip(before, rates, strict=False)):
        if old > 0 and new / old >= _SCENE_RATIO:
            group = f" of group {number}" if len(rates) > 1 else ""
            return f"the learning rate{group} rose from {old:.3g} to {new:.3g}"
    return None


_TOO_HIGH: Final = "The learning rate is too high: the training diverges."
_NEVER: Final = "The learning rate was too high from the start."

RULE: Final = CauseRule(
    title="The learning rate jumped.",
    advice=(
        (
            "Go back to the checkpoint before it and resume with a lower rate, or with the rate as"
            " it was."
        ),
        "Warm the rate up from 0, and clip gradients.",
    ),
    blames="setting",
    family="setting",
    judge=judge,
    at_scene=judge_scene,
)
