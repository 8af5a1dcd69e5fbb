"""How a cause that is read in the texts of samples is judged: the same way for every kind of text.

A sample's chance of being the culprit grows with how clear the sign is, with how few samples of such a batch have it by nature, and with how rare its
loss is among samples of its length. Weak signs count when far more samples of the batch have them than samples of the corpus do.
"""

import math
from functools import partial
from typing import Final

from sonde.forensics.causes.rule import SKIP, Family, Finding, Rule
from sonde.forensics.evidence import Evidence
from sonde.forensics.readings import OF_LENGTH
from sonde.forensics.samples_seen import SeenSample, rarity_of
from sonde.texts.pairs import TRUNCATED
from sonde.texts.signs import CLEAR, Sign

_BASE: Final = -7.0
_PER_STRENGTH: Final = 6.5
_PER_RARITY: Final = 1.3
"""The logarithm of the odds that a sample is the culprit. A power of ten of its loss would be 2.3 if losses had nothing to do with signs."""
_PER_BITS: Final = 0.5
"""The same for its bits per character, which rise with names and capitals too."""
_MOST_RARE: Final = 6.0
_MOST_OF_SOURCE: Final = 2.0
"""Without the help of its source a target loses more, but not so much."""
ALIKE: Final = 0.8
_PER_ALIKE: Final = 0.8
_PER_OTHER: Final = 0.3
_RARE: Final = 0.002
"""The more samples of a batch like this have the same sign by nature, as strong or nearly, the lower the odds; other signs say that the corpus is rough."""
_LIKELY: Final = 0.5
"""A plain sign is what is wrong with a sample when it is as likely as this."""
_LEAST: Final = 0.15
"""A sample with a smaller chance is no suspect."""
_LEAST_TOKENS: Final = 4
"""Shorter samples, such as what is left at the end of a corpus, say nothing."""
_EXPLAINED: Final = 0.4
"""What is left of a score when the loss stays high without the suspects."""
_CUT_TAIL: Final = 2.0
"""A loss as rare as this, as a power of ten, is no cut text's."""
_AT_THE_END: Final = 0.5
"""unless its last token makes up so much of what it adds."""
_MINOR: Final = 0.5
"""What is left of the score of a kind that adds next to nothing to the loss beside others; one that adds half of it keeps its score."""
_MANY: Final = 3.0
_BATCH_Z: Final = 2.0
_CLEAR_Z: Final = 4.0
_QUIET: Final = 0.4
_QUIET_RARE: Final = 0.75
_HARDLY: Final = 0.005
_CROWD: Final = 0.93
"""The highest score of a crowd of plain signs in a batch that loses no more for it."""
_TWO: Final = 0.7
_LEAST_MANY: Final = 3
"""So many samples with the same weak sign are more than an accident, when so many are as rare as this power of ten."""


def text_rule(kind: str, *, title: str, advice: str, family: Family = "text") -> Rule:
    """The rule for a kind of sign."""
    return Rule(
        title=title,
        advice=(SKIP, advice),
        blames="samples",
        family=family,
        needs=frozenset({"replay", "text"}),
        judge=partial(judge_kind, kind=kind),
    )


def judge_kind(evidence: Evidence, *, kind: str) -> Finding | None:
    """What speaks for a kind of text among the samples of the step."""
    long_enough = [seen for seen in evidence.samples if (seen.sample.num_tokens or 0) >= _LEAST_TOKENS]
    signed = [(one, sign) for one in long_enough if (sign := sign_of(one)) is not None and sign.kind == kind]
    found = [(chance(evidence, sign, seen), seen, sign) for seen, sign in signed]
    share = _share(evidence, kind, [seen for seen, _ in signed])
    many = _many(len(signed), len(evidence.samples), share)
    crowd = crowd_of(evidence, kind)
    found = [one for one in found if one[0] >= (_LEAST if not many and crowd < _MANY else 0.0)]
    if not found:
        return None
    best = max(found, key=lambda one: one[0])
    if not evidence.batch_z > (_BATCH_Z if share < _HARDLY else _CLEAR_Z):
        # Odd to read, and the batch loses no more for it: only what the corpus hardly has is more than a run of like samples.
        many = min(many, _QUIET_RARE if share < _HARDLY else _QUIET)
    strongest = max(sign.strength for _, _, sign in found)
    score = max(
        best[0],
        many * strongest,
        _CROWD * min(1.0, 0.5 + 0.1 * crowd) if crowd >= _MANY else 0.0,
    )
    suspects = [seen for _, seen, _ in found]
    told = [told_of(evidence, suspects), *best[2].evidence]
    score *= evidence.data_weight
    if evidence.case.is_loss_unusual:
        # A batch may hold several kinds: all that can be read in it must explain the loss together.
        everything = list({one.row.name: one for one in [*suspects, *_signed(evidence)]}.values())
        part = evidence.part_of(everything)
        odd = "sample that reads" if len(everything) == 1 else f"{len(everything)} samples that read"
        told.append(f"without the {odd} oddly {part:.0%} of the loss above normal is gone")
        own = sum(max(one.excess, 0.0) for one in suspects) / max(sum(max(one.excess, 0.0) for one in everything), 1e-9)
        score *= (_EXPLAINED + (1 - _EXPLAINED) * part) * (_MINOR + (1 - _MINOR) * min(2 * own, 1.0))
    return Finding(score=score, evidence=told, suspects=evidence.suspects(suspects))


def _signed(evidence: Evidence) -> list[SeenSample]:
    """The samples in which something plain can be read."""
    return [one for one in evidence.samples if one.signs and one.signs[0].strength >= CLEAR]


def chance(evidence: Evidence, sign: Sign, seen: SeenSample) -> float:
    """How likely it is that a sample with this sign is the culprit, given the signs that samples of the reference have."""
    usual, num = evidence.usual_signs, len(evidence.samples)
    strength = ALIKE * sign.strength
    rough = _PER_ALIKE * math.log(num * usual.share(seen.row, strength, sign.kind) / _RARE)
    rough += _PER_OTHER * math.log(num * usual.share(seen.row, strength) / _RARE)
    most = _MOST_OF_SOURCE if sign.of_source else _MOST_RARE
    odds = _BASE + _PER_STRENGTH * sign.strength + _PER_RARITY * min(seen.rarity, most) - rough
    if sign.kind not in OF_LENGTH and not sign.of_source:  # the words of the target are like any others then
        odds += _PER_BITS * min(seen.bits_rarity, _MOST_RARE)
    return 1 / (1 + math.exp(-odds))


def crowd_of(evidence: Evidence, kind: str) -> float:
    """How rare it is that so many samples of a batch have a plain sign of a kind, as a negative power of ten; 0 for one."""

    def count() -> float:
        signs = [(one, sign) for one in evidence.samples if (sign := sign_of(one)) is not None and sign.kind == kind]
        plain = [(one.row, sign.strength) for one, sign in signs if sign.strength >= CLEAR]
        if len(plain) < 2:
            return 0.0
        shares = sorted(evidence.usual_signs.share(row, ALIKE * strength, kind) for row, strength in plain)
        rarity = rarity_of(len(plain), len(evidence.samples) * shares[len(shares) // 2])
        return rarity if len(plain) >= _LEAST_MANY else _TWO * rarity

    return evidence.once(f"crowd {kind}", count)


def is_read(evidence: Evidence, seen: SeenSample) -> bool:
    """Can something be read in a sample that is likely to be its trouble?"""
    sign = sign_of(seen)
    if sign is None or sign.strength < CLEAR:
        return False
    return crowd_of(evidence, sign.kind) >= _MANY or chance(evidence, sign, seen) >= _LIKELY


def _share(evidence: Evidence, kind: str, seen: list[SeenSample]) -> float:
    """The part of the samples, of such lengths, that have signs of a kind anyway, however weak."""
    shares = sorted(evidence.usual_signs.share(one.row, 0.0, kind) for one in seen)
    return shares[len(shares) // 2] if shares else 0.0


def sign_of(seen: SeenSample) -> Sign | None:
    """The first sign of a sample that may explain its loss. What is cut off is as likely as what is not, but for its end, which comes too early."""
    ends_early = (seen.sample.token_losses or (0.0,))[-1] > _AT_THE_END * seen.excess
    is_cut = seen.tail < _CUT_TAIL or ends_early
    return next((one for one in seen.signs if one.kind != TRUNCATED or is_cut), None)


def told_of(evidence: Evidence, suspects: list[SeenSample]) -> str:
    """How far the losses of the suspects are out."""
    worst = max(suspects, key=lambda one: one.z)
    loss = (
        "not finite"
        if worst.sample.loss is None or not math.isfinite(worst.sample.loss)
        else f"{worst.sample.loss:.3g}"
    )
    bits = "" if math.isnan(worst.bits) else f", {worst.bits:.2g} bits per character ({worst.bits_z:+.1f} deviations)"
    return (
        f"{len(suspects)} of {len(evidence.samples)} samples; the worst, {worst.row.name[1]}, has a loss of {loss}, "
        f"{worst.z:+.1f} deviations from samples of its length{bits}"
    )


def _many(num: int, num_rows: int, share: float) -> float:
    """From 0 to 1: are these more samples than a batch of the corpus would have?"""
    rarity = rarity_of(num, num_rows * share) if num >= _LEAST_MANY else 0.0
    return 0.0 if rarity < _MANY else min(1.0, 0.5 + 0.1 * rarity)
