"""Targets that do not belong to their sources: lengths or numbers that do not fit, or sources that do not help."""

import math
from typing import Final

from sonde.forensics.causes.rule import SKIP, Finding, Rule
from sonde.forensics.causes.text_kind import chance, told_of
from sonde.forensics.evidence import Evidence
from sonde.forensics.samples_seen import SeenSample, rarity_of
from sonde.texts.pairs import MISMATCHED
from sonde.texts.signs import CLEAR

_LEAST_TAIL: Final = 0.0
"""A source that hardly helps is a mismatch only if the loss of its target is an outlier too."""
_MIXED: Final = 0.92
_TWO_MIXED: Final = 0.7
_UNHELPED: Final = 0.88
"""The maximum scores of samples whose source fits another target (if there are only two, they may be similar sentences), and of those whose source does not help."""
_EVEN: Final = 2.5
"""At this rarity (a power of ten), the number of unhelpful sources is as likely chance as not."""


def judge(evidence: Evidence) -> Finding | None:
    """Judge which samples have sides that do not fit, by their text or by the model's losses."""
    scores: list[tuple[float, SeenSample, tuple[str, ...]]] = []
    test = evidence.pairs
    unhelped = [one for one in evidence.samples if test and test.is_unhelped(one.row.name) and one.tail > _LEAST_TAIL]
    for seen in evidence.samples:
        first = seen.signs[0] if seen.signs else None
        if first is not None and first.kind == MISMATCHED:
            scores.append((chance(evidence, first, seen), seen, first.evidence))
        if test is None or not test.is_telling or (first is not None and first.strength >= CLEAR):
            continue
        name = seen.row.name
        if name in test.mixed and seen.z > 0 and len(test.mixed) > 1:
            scores.append((_MIXED if len(test.mixed) > 2 else _TWO_MIXED, seen, (test.mixed[name],)))
        elif seen in unhelped:
            why = f"its own source takes {test.helps[name]:.2g} off the loss of its target, usually {test.usual.median:.2g}"
            scores.append((_of_unhelped(len(unhelped), test.expected, seen.tail), seen, (why,)))
    scores = [one for one in scores if one[0] > 0.1]
    if not scores:
        return None
    best = max(scores, key=lambda one: one[0])
    suspects = list({one.row.name: one for _, one, _ in scores}.values())
    score = best[0] * evidence.data_weight
    told = [told_of(evidence, suspects), *best[2]]
    if evidence.case.is_loss_unusual:
        part = evidence.part_of(suspects)
        told.append(f"without {'it' if len(suspects) == 1 else 'them'} {part:.0%} of the loss above normal is gone")
        score *= 0.4 + 0.6 * part
    return Finding(score=score, evidence=told, suspects=evidence.suspects(suspects))


def _of_unhelped(num: int, expected: float, tail: float) -> float:
    """Return the score of a source that does not help: higher if that is rare in the corpus and frequent in this batch."""
    rarity = rarity_of(num, expected) + 0.5 * min(tail, 2.0)
    return _UNHELPED / (1 + math.exp(1.5 * (_EVEN - rarity)))


RULE: Final = Rule(
    title="The batch holds targets that do not belong to their sources.",
    advice=(SKIP, "Check how the two sides of the corpus were aligned around these lines."),
    blames="samples",
    family="pair",
    needs="pairs",
    judge=judge,
)
