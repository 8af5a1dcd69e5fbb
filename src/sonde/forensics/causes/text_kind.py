"""How causes that are found in the texts of samples are judged, the same for every kind of text.

The probability that a sample is the culprit grows with how clear its sign is, with how rarely samples of such a batch
have it naturally, and with how rare its loss is among samples of its length. Weak signs count if far more samples of
the batch have them than samples of the corpus do.
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
"""The log-odds that a sample is the culprit, per power of ten of its loss's rarity. If losses were independent of signs, this would be 2.3."""
_PER_BITS: Final = 0.5
"""The log-odds per power of ten of rarity in bits per character, which also rise with names and capitals."""
_MOST_RARE: Final = 6.0
_MOST_OF_SOURCE: Final = 2.0
"""The maximum rarity that counts for a sign in the source: without its help the loss of a target rises, but not that much."""
ALIKE: Final = 0.8
_PER_ALIKE: Final = 0.8
_PER_OTHER: Final = 0.3
_RARE: Final = 0.002
"""The more samples naturally have the same sign, about as strong, the lower the odds; other signs show that the corpus is rough."""
_LIKELY: Final = 0.5
"""A clear sign explains a sample if it is at least this likely."""
_LEAST: Final = 0.15
"""A sample with a lower probability is not a suspect."""
_LEAST_TOKENS: Final = 4
"""Shorter samples, such as the remainder at the end of a corpus, are not informative."""
_EXPLAINED: Final = 0.4
"""The factor on the score if the loss stays high without the suspects."""
_CUT_TAIL: Final = 2.0
"""A loss this rare, as a power of ten, is not explained by truncation."""
_AT_THE_END: Final = 0.5
"""The exception: the last token makes up this fraction of its excess loss."""
_MINOR: Final = 0.5
"""The factor on the score of a kind that adds almost nothing to the loss besides others; a kind that adds half keeps its score."""
_MANY: Final = 3.0
_BATCH_Z: Final = 2.0
_CLEAR_Z: Final = 4.0
_QUIET: Final = 0.4
_QUIET_RARE: Final = 0.75
_HARDLY: Final = 0.005
_CROWD: Final = 0.93
"""The maximum score of many clear signs in a batch whose loss is not higher."""
_TWO: Final = 0.7
_LEAST_MANY: Final = 3
"""At least this many samples with the same weak sign are more than chance, if that number is rare enough (`_MANY`)."""


def text_rule(kind: str, *, title: str, advice: str, family: Family = "text") -> Rule:
    """Return the rule for a kind of sign."""
    return Rule(
        title=title,
        advice=(SKIP, advice),
        blames="samples",
        family=family,
        needs=frozenset({"replay", "text"}),
        judge=partial(judge_kind, kind=kind),
    )


def judge_kind(evidence: Evidence, *, kind: str) -> Finding | None:
    """Judge the evidence for a kind of text among the samples of the step."""
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
        # Unusual text, but the loss of the batch is no higher: only signs that the corpus hardly has are more than a run of similar
        # samples.
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
        # A batch may contain several kinds: all readable signs together must explain the loss.
        everything = list({one.row.name: one for one in [*suspects, *_signed(evidence)]}.values())
        part = evidence.part_of(everything)
        odd = "sample that reads" if len(everything) == 1 else f"{len(everything)} samples that read"
        told.append(f"without the {odd} oddly {part:.0%} of the loss above normal is gone")
        own = sum(max(one.excess, 0.0) for one in suspects) / max(sum(max(one.excess, 0.0) for one in everything), 1e-9)
        score *= (_EXPLAINED + (1 - _EXPLAINED) * part) * (_MINOR + (1 - _MINOR) * min(2 * own, 1.0))
    return Finding(score=score, evidence=told, suspects=evidence.suspects(suspects))


def _signed(evidence: Evidence) -> list[SeenSample]:
    """Return the samples with a clear sign."""
    return [one for one in evidence.samples if one.signs and one.signs[0].strength >= CLEAR]


def chance(evidence: Evidence, sign: Sign, seen: SeenSample) -> float:
    """Return the probability that a sample with this sign is the culprit, given the signs of the reference samples."""
    usual, num = evidence.usual_signs, len(evidence.samples)
    strength = ALIKE * sign.strength
    rough = _PER_ALIKE * math.log(num * usual.share(seen.row, strength, sign.kind) / _RARE)
    rough += _PER_OTHER * math.log(num * usual.share(seen.row, strength) / _RARE)
    most = _MOST_OF_SOURCE if sign.of_source else _MOST_RARE
    odds = _BASE + _PER_STRENGTH * sign.strength + _PER_RARITY * min(seen.rarity, most) - rough
    if sign.kind not in OF_LENGTH and not sign.of_source:  # otherwise the words of the target are normal
        odds += _PER_BITS * min(seen.bits_rarity, _MOST_RARE)
    return 1 / (1 + math.exp(-odds))


def crowd_of(evidence: Evidence, kind: str) -> float:
    """Return how rare it is that this many samples of a batch have a clear sign of a kind, as a negative power of ten; 0 for one."""

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
    """Return whether a sample has a sign that probably explains its loss."""
    sign = sign_of(seen)
    if sign is None or sign.strength < CLEAR:
        return False
    return crowd_of(evidence, sign.kind) >= _MANY or chance(evidence, sign, seen) >= _LIKELY


def _share(evidence: Evidence, kind: str, seen: list[SeenSample]) -> float:
    """Return the fraction of samples of similar length that naturally have signs of a kind, however weak."""
    shares = sorted(evidence.usual_signs.share(one.row, 0.0, kind) for one in seen)
    return shares[len(shares) // 2] if shares else 0.0


def sign_of(seen: SeenSample) -> Sign | None:
    """Return the first sign of a sample that may explain its loss.

    Truncated text is as likely as other text, except for its end, which comes too early.
    """
    ends_early = (seen.sample.token_losses or (0.0,))[-1] > _AT_THE_END * seen.excess
    is_cut = seen.tail < _CUT_TAIL or ends_early
    return next((one for one in seen.signs if one.kind != TRUNCATED or is_cut), None)


def told_of(evidence: Evidence, suspects: list[SeenSample]) -> str:
    """Describe how far the losses of the suspects are out."""
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
    """Return, from 0 to 1, whether these are more samples than a batch of the corpus would have."""
    rarity = rarity_of(num, num_rows * share) if num >= _LEAST_MANY else 0.0
    return 0.0 if rarity < _MANY else min(1.0, 0.5 + 0.1 * rarity)
