"""Data or state: what the numbers of a scene say about the step, as the first verdict on it. Pure.

The step's batch and others were run at the state before the step. If only this batch has a high loss, it is the data; if the others have one
too, higher than when they were trained on, it is the state. Replay and diagnosis say more later, from older states.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from sonde.forensics.causes import rules
from sonde.forensics.causes.rule import Finding
from sonde.forensics.verdict import UNKNOWN, Cause, Experiment, Suspect
from sonde.spread import Spread

_RATE_RATIO: Final = 3.0
"""A learning rate that changed by more from one update to the next has jumped."""
_STATE_SHARE: Final = 0.4
"""When other batches have risen by so much of what this one has risen, the state is to blame."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SuspectRow:
    """One row of the step's batch, of any rank."""

    dataset: str
    sample: int
    rank: int
    loss: float
    """Mean over its tokens."""
    text: str
    """Around its worst tokens."""
    tokens: tuple[tuple[str, float], ...]
    """Its worst tokens with their losses."""
    cause: str = ""
    """What its text was read as (texts/signs.py)."""
    strength: float = 0.0
    evidence: tuple[str, ...] = ()

    def suspect(self) -> Suspect:
        """As a verdict names it."""
        return Suspect(dataset=self.dataset, sample=self.sample, rank=self.rank, loss=self.loss, text=self.text)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SceneFacts:
    """What was found at the scene, over all ranks."""

    step: int
    own: float
    """The loss of the step's batch, run again."""
    is_exact: bool | None
    """Is that the loss of the step, bit for bit? None when it could not be run again."""
    normal: float
    """What was expected."""
    others: Sequence[tuple[int, float, float]]
    """Other batches: their step, their loss then, their loss at the state of now."""
    rows: Sequence[SuspectRow]
    """Rows of the step's batch, worst first."""
    row_losses: Sequence[float]
    """Of all its rows."""
    rates: Sequence[tuple[int, float]]
    """Learning rates of the last updates, the step's last."""


def judge(facts: SceneFacts) -> list[Cause]:
    """The causes, most likely first; at least one."""
    if facts.is_exact is None or not facts.others:
        return [make_cause(UNKNOWN, 0.3, ["the step could not be run again at the scene"], step=facts.step)]
    others = [(then, now) for _, then, now in facts.others]
    if is_state_bad(facts.own, facts.normal, others):
        return _state(facts, _rise_of(others))
    return _data(facts)


def judge_rows(step: int, rows: Sequence[SuspectRow], expected: Sequence[float], z: Sequence[float]) -> list[Cause]:
    """The causes where the mean is as usual and single rows stand out, worst first."""
    told = [
        f"row {row.dataset}:{row.sample} has a loss of {row.loss:.4g}, rows of its length {usual:.4g}: {far:.1f} deviations"
        for row, usual, far in zip(rows, expected, z, strict=False)
    ]
    return _blamed(step, told, rows)


def is_state_bad(own: float, normal: float, others: Sequence[tuple[float, float]]) -> bool:
    """Is the state to blame: have other batches, then and now, risen by much of what the step's own batch has?"""
    if not others:
        return False
    usual = normal if math.isfinite(normal) else Spread([then for then, _ in others]).median
    return _rise_of(others) > _STATE_SHARE * (_finite(own) - _finite(usual)) > 0


def _rise_of(others: Sequence[tuple[float, float]]) -> float:
    return Spread([_finite(now) - _finite(then) for then, now in others]).median


def experiments(facts: SceneFacts) -> list[Experiment]:
    """What was done at the scene."""
    told = {None: "could not be run again", True: "is the same to the bit", False: "is another"}[facts.is_exact]
    found = [
        Experiment(
            question="does it happen again?",
            done="the step's forward again, before the optimiser moved",
            found=f"the loss {told}: {facts.own:.4g}",
            numbers={"own": facts.own},
        )
    ]
    if facts.others:
        then = Spread([one for _, one, _ in facts.others]).median
        now = Spread([one for _, _, one in facts.others]).median
        found.append(
            Experiment(
                question="data or state?",
                done=f"{len(facts.others)} other batches at the state before step {facts.step}",
                found=f"their loss is {now:.4g}, and was {then:.4g} when they were trained on; this batch has {facts.own:.4g}",
                numbers={"own": facts.own, "others": now, "others_then": then},
            )
        )
    return found


def _state(facts: SceneFacts, rise: float) -> list[Cause]:
    told = [f"other batches have a loss {rise:.3g} higher than when they were trained on"]
    for (_, before), (step, rate) in reversed(list(zip(facts.rates, facts.rates[1:], strict=False))):
        if step < facts.step and before > 0 and rate / before >= _RATE_RATIO:
            jump = f"the learning rate was {rate:.3g} at step {step}, and {before:.3g} before"
            return [make_cause("learning_rate", 0.8, [jump, *told], step=facts.step, setting="lr")]
    title = "The state is bad: other batches have a higher loss too."
    return [make_cause(UNKNOWN, 0.6, told, step=facts.step, title=title, bad_checkpoint=facts.step - 1)]


def _data(facts: SceneFacts) -> list[Cause]:
    now = Spread([one for _, _, one in facts.others])
    told = [
        f"this batch has a loss of {facts.own:.4g}, {len(facts.others)} others {now.median:.4g} at the same weights"
    ]
    if not facts.rows:
        return [make_cause("hard_sample", 0.6, told, step=facts.step)]
    worst = facts.rows[0]
    half_way = 0.5 * worst.loss + 0.5 * Spread(facts.row_losses).median if math.isfinite(worst.loss) else math.inf
    blamed = [one for one in facts.rows if not one.loss < half_way]
    told.append(
        f"row {worst.dataset}:{worst.sample} has a loss of {worst.loss:.4g}, the middle one of {len(facts.row_losses)} rows "
        f"{Spread(facts.row_losses).median:.4g}"
    )
    if worst.tokens:
        told.append("worst tokens: " + ", ".join(f"{text!r} {loss:.3g}" for text, loss in worst.tokens))
    return _blamed(facts.step, told, blamed)


def _blamed(step: int, told: Sequence[str], blamed: Sequence[SuspectRow]) -> list[Cause]:
    """Rows are to blame: what their text is, or that they are hard."""
    kind = max(blamed, key=lambda one: one.strength)
    suspects = [one.suspect() for one in blamed]
    if kind.cause:
        sure = min(0.9, 0.5 + 0.4 * kind.strength)
        return [
            make_cause(kind.cause, sure, [*told, *kind.evidence], step=step, suspects=suspects),
            make_cause("hard_sample", 0.9 - sure, told, step=step, suspects=suspects),
        ]
    return [make_cause("hard_sample", 0.7, told, step=step, suspects=suspects)]


def make_cause(name: str, confidence: float, evidence: Sequence[str], *, step: int, **pointers: Any) -> Cause:
    """A cause with its title and advice."""
    return rules()[name].cause(name, Finding(score=confidence, evidence=evidence, **pointers), confidence, step)


def _finite(loss: Any) -> float:
    """A loss as a number to reckon with: what is not finite is enormous."""
    return float(loss) if math.isfinite(loss) else 1e30
