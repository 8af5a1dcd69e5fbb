"""The first verdict on an event, from what was found at its scene (scene.py)."""

import math
from collections.abc import Sequence
from typing import Any, Final

from sonde.forensics.causes import rules
from sonde.forensics.causes.cause_rule import CauseFinding
from sonde.forensics.verdict import UNKNOWN, Cause, Experiment
from sonde.recorder.scene import SceneFacts, SuspectRow, finite
from sonde.spread import Spread

_RATE_RATIO: Final = 3.0
"""A learning rate that changes by more than this factor between updates has jumped."""
_STATE_SHARE: Final = 0.4
"""The state is to blame if other batches have risen by this fraction of the rise of this one."""


def judge(facts: SceneFacts) -> list[Cause]:
    """Return the causes, most likely first; at least one."""
    if not facts.is_exact or not facts.others:
        why = "the step could not be run again at the scene"
        if facts.is_exact is False:
            why = "the step does not give the same loss when it is run again"
        return [make_cause(UNKNOWN, 0.3, [why], step=facts.step)]
    if not math.isfinite(facts.own) and not _is_one_row(facts):
        why = f"the loss is {facts.own} when the step is run again, and no single row makes it so"
        return [make_cause(UNKNOWN, 0.3, [why], step=facts.step, title="The loss is not finite.")]
    if is_state_bad(facts.own, facts.normal, facts.others):
        return _state(facts)
    return _data(facts)


def _is_one_row(facts: SceneFacts) -> bool:
    """Return whether some rows of the batch are not finite while others are."""
    bad = sum(not math.isfinite(loss) for loss in facts.row_losses)
    return 0 < bad <= len(facts.row_losses) / 2


def judge_rows(
    step: int, rows: Sequence[SuspectRow], expected: Sequence[float], z: Sequence[float]
) -> list[Cause]:
    """Return the causes when the mean is normal but single rows are outliers, worst first."""
    sentences = [
        f"{_describe(row)}, rows of its length {usual:.4g}: {far:.1f} deviations"
        for row, usual, far in zip(rows, expected, z, strict=False)
    ]
    return _blamed(step, sentences, rows)


def _describe(row: SuspectRow) -> str:
    return f"row {row.suspect.dataset}:{row.suspect.sample} has a loss of {row.loss:.4g}"


def is_state_bad(own: float, normal: float, others: Sequence[tuple[float, float]]) -> bool:
    """Return whether the state is to blame: other batches have risen by much of the rise of the
    step's own batch.
    """
    if not others:
        return False
    usual = normal if math.isfinite(normal) else Spread([then for then, _ in others]).median
    return _rise_of(others) > _STATE_SHARE * (finite(own) - finite(usual)) > 0


def _rise_of(others: Sequence[tuple[float, float]]) -> float:
    return Spread([finite(now) - finite(then) for then, now in others]).median


def experiments(facts: SceneFacts) -> list[Experiment]:
    """Describe what was done at the scene."""
    told = {None: "could not be run again", True: "is the same to the bit", False: "is another"}[
        facts.is_exact
    ]
    found = [
        Experiment(
            question="does it happen again?",
            done="the step's forward again, before the optimizer moved",
            found=f"the loss {told}: {facts.own:.4g}",
            numbers={"own": facts.own},
        )
    ]
    if facts.others:
        then, now = (Spread(losses).median for losses in zip(*facts.others, strict=True))
        found.append(
            Experiment(
                question="data or state?",
                done=f"{len(facts.others)} other batches at the state before step {facts.step}",
                found=(
                    f"their loss is {now:.4g}, and was {then:.4g} when they were trained on; this"
                    f" batch has {facts.own:.4g}"
                ),
                numbers={"own": facts.own, "others": now, "others_then": then},
            )
        )
    return found


def _state(facts: SceneFacts) -> list[Cause]:
    sentences = [
        (
            f"other batches have a loss {_rise_of(facts.others):.3g} higher than when they were"
            " trained on"
        )
    ]
    for (_, before), (step, rate) in reversed(
        list(zip(facts.rates, facts.rates[1:], strict=False))
    ):
        if step < facts.step and before > 0 and rate / before >= _RATE_RATIO:
            jump = f"the learning rate was {rate:.3g} at step {step}, and {before:.3g} before"
            return [
                make_cause("learning_rate", 0.8, [jump, *sentences], step=facts.step, setting="lr")
            ]
    title = "The state is bad: other batches have a higher loss too."
    return [
        make_cause(
            UNKNOWN, 0.6, sentences, step=facts.step, title=title, bad_checkpoint=facts.step - 1
        )
    ]


def _data(facts: SceneFacts) -> list[Cause]:
    now = Spread([loss for _, loss in facts.others]).median
    sentences = [
        (
            f"this batch has a loss of {facts.own:.4g}, {len(facts.others)} others {now:.4g} at the"
            " same weights"
        )
    ]
    if not facts.rows:
        sentences.append("which of its rows did it is not known: their losses are not seen")
        title = "This batch has a high loss, and others do not; which rows did it cannot be told."
        return [make_cause(UNKNOWN, 0.3, sentences, step=facts.step, title=title)]
    worst = facts.rows[0]
    half_way = (
        0.5 * worst.loss + 0.5 * Spread(facts.row_losses).median
        if math.isfinite(worst.loss)
        else math.inf
    )
    blamed = [row for row in facts.rows if not row.loss < half_way]
    sentences.append(
        f"{_describe(worst)}, the middle one of {len(facts.row_losses)} rows"
        f" {Spread(facts.row_losses).median:.4g}"
    )
    if worst.tokens:
        sentences.append(
            "worst tokens: " + ", ".join(f"{text!r} {loss:.3g}" for text, loss in worst.tokens)
        )
    return _blamed(facts.step, sentences, blamed)


def _blamed(step: int, told: Sequence[str], blamed: Sequence[SuspectRow]) -> list[Cause]:
    """Return the causes when rows are to blame: the sign of their text, or that they are hard."""
    sign = max((row.sign for row in blamed), key=lambda sign: sign.strength)
    suspects = [row.suspect for row in blamed]
    # not every kind of sign is a cause: a text may be over-long, or have none
    if sign.kind in rules():
        sure = min(0.9, 0.5 + 0.4 * sign.strength)
        return [
            make_cause(sign.kind, sure, [*told, *sign.evidence], step=step, suspects=suspects),
            make_cause("hard_sample", 0.9 - sure, told, step=step, suspects=suspects),
        ]
    return [make_cause("hard_sample", 0.7, told, step=step, suspects=suspects)]


def make_cause(
    name: str, confidence: float, evidence: Sequence[str], *, step: int, **pointers: Any
) -> Cause:
    """Return a cause with its title and advice."""
    return rules()[name].cause(
        name, CauseFinding(score=confidence, evidence=evidence, **pointers), confidence, step
    )
