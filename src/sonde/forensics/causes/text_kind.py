"""The causes that are found in the texts of samples, all judged in the same way. To add one, add a
line to `_KINDS`.

The probability that a kind of text is the cause was fitted (logistic regression on the tuning half
of benchmarks/diagnosis.py, checked on corpora left out of the fit). It grows with how clear the
sign of a sample is, with how rarely samples of such a batch have it naturally, with how rare the
sample's loss and bits per character are among samples of its length, with how many samples of the
batch share the sign, and with how much of the excess loss is theirs.

One row of a large batch has next to no part of the loss, and none of the excess if it takes many
cheap tokens. Where no other sample is far out, it therefore has a probability of its own, fitted to
single rows of batches of 32 and to the signs of clean steps: a clear, rare sign counts with the
deviations of loss and bits.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from sonde.data.skip_list import sample_name
from sonde.forensics.causes.cause_rule import LOOK_AT_SAMPLES, SKIP, CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.readings import OF_LENGTH
from sonde.forensics.samples_seen import SeenSample, rarity_of
from sonde.forensics.scene_evidence import SceneEvidence
from sonde.texts.pairs import COPIED, SWAPPED, TRUNCATED
from sonde.texts.signs import CLEAR, Sign

_BASE: Final = -5.55
_PER_STRENGTH: Final = 1.6
_PER_EXPECTED: Final = -1.0
"""The log-odds of a sign of strength 1 per factor of ten of how many samples of such a batch
naturally have one about as strong.
"""
_PER_RARITY: Final = 0.33
"""The log-odds per power of ten of rarity, of the loss and of the bits per character."""
_PER_CROWD: Final = 0.34
"""The log-odds per power of ten of how rare it is that so many samples of a batch have the sign."""
_PER_PART: Final = 2.85
"""The log-odds if the whole excess loss of the batch is in samples with the sign."""
_ALONE_BASE: Final = -5.0
_ALONE_PER_STRENGTH: Final = -1.79
_ALONE_PER_EXPECTED: Final = -1.73
_ALONE_PER_Z: Final = 1.28
_ALONE_PER_BITS_Z: Final = 0.32
"""The log-odds of a sample by itself. All but the base are for a sign of strength 1."""
_HABIT: Final = 0.5
"""What more than this fraction of similar samples have is normal in this corpus."""
_OTHERS_FAR: Final = 4.0
"""A sample does not explain a step if others, without its sign, are this many deviations out."""
_MOST_Z: Final = 6.0
_MOST_BITS_Z: Final = 12.0
"""More deviations say no more."""
_A_LITTLE_FAR: Final = 4.0
_VERY_FAR: Final = 10.0
"""At the scene, a sign of a row counts in full from this many deviations on."""
_MOST_RARE: Final = 6.0
_MOST_CROWDED: Final = 8.0
_ALIKE: Final = 0.8
"""A sign is about as strong as another if it has this fraction of its strength."""
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


class _Candidate(NamedTuple):
    """A sample that may be the cause."""

    probability: float
    """The probability that its kind of text is the cause."""
    seen: SeenSample
    sign: Sign


def judge_kind(evidence: Evidence, *, kind: str) -> CauseFinding | None:
    """Judge the evidence for a kind of text among the samples of the step."""
    found = []
    for seen, sign in _having(evidence, kind):
        probability = chance(evidence, sign, seen)
        if probability >= _LEAST:
            found.append(_Candidate(probability, seen, sign))
    if not found:
        return None
    best = max(found, key=lambda candidate: candidate.probability)
    suspects = _to_blame(evidence, found, best)
    sentences = [describe_suspects(evidence, suspects), *best.sign.evidence]
    score = best.probability * evidence.data_weight
    if evidence.case.is_loss_unusual:
        # A batch may contain several kinds: all readable signs together must explain the loss.
        reading_oddly = _reading_oddly(evidence, found)
        part = evidence.part_of(reading_oddly)
        odd = "sample that reads"
        if len(reading_oddly) != 1:
            odd = f"{len(reading_oddly)} samples that read"
        sentences.append(f"without the {odd} oddly {part:.0%} of the loss above normal is gone")
        score *= _EXPLAINED + (1 - _EXPLAINED) * part
    return CauseFinding(score=score, evidence=sentences, suspects=evidence.suspects(suspects))


def _to_blame(
    evidence: Evidence, found: Sequence[_Candidate], best: _Candidate
) -> list[SeenSample]:
    """Return the samples to blame. Beside the best, a sample is to blame by its own part of the
    excess loss, not by that of all samples of its kind.
    """
    blamed = []
    for candidate in found:
        seen = candidate.seen
        by_itself = chance(evidence, candidate.sign, seen, part=_part_of(evidence, [seen]))
        if candidate is best or by_itself >= _LEAST:
            blamed.append(seen)
    return blamed


def _reading_oddly(evidence: Evidence, found: Sequence[_Candidate]) -> list[SeenSample]:
    """Return the samples that were found and all others with a clear sign, each once."""
    by_name = {candidate.seen.row.name: candidate.seen for candidate in found}
    for sample in evidence.samples:
        if sample.signs and sample.signs[0].strength >= CLEAR:
            by_name[sample.row.name] = sample
    return list(by_name.values())


def judge_kind_at_scene(scene: SceneEvidence, kind: str) -> CauseFinding | None:
    """Judge whether the rows that alone raise the loss have the sign of a kind."""
    blamed = [row for row in scene.blamed_rows() if row.sign.kind == kind]
    if not blamed:
        return None
    clearest = max((row.sign for row in blamed), key=lambda sign: sign.strength)
    score = clearest.strength
    if scene.metric == "sample":
        # Ordinary text that is a little odd stands out a little.
        far = max(scene.row_deviations, default=0.0)
        score *= min(max((far - _A_LITTLE_FAR) / (_VERY_FAR - _A_LITTLE_FAR), 0.3), 1.0)
    return CauseFinding(
        score=score,
        evidence=[*scene.describe_rows(blamed), *clearest.evidence],
        suspects=[row.suspect for row in blamed],
    )


def _having(evidence: Evidence, kind: str) -> list[tuple[SeenSample, Sign]]:
    """Return the samples whose first sign is of a kind, with the sign."""
    long_enough = [
        seen for seen in evidence.samples if (seen.sample.num_tokens or 0) >= _LEAST_TOKENS
    ]
    return [
        (seen, sign)
        for seen in long_enough
        if (sign := sign_of(seen)) is not None and sign.kind == kind
    ]


def chance(evidence: Evidence, sign: Sign, seen: SeenSample, *, part: float | None = None) -> float:
    """Return the probability that a kind of text is the cause, judged by one sample that has its
    sign.

    `part` is the part of the excess loss that counts for it; by default, that of all samples with
    the sign.
    """
    crowd, shared = evidence.once(f"shared {sign.kind}", partial(_shared, evidence, sign.kind))
    usual = evidence.usual_signs.share(seen.row, _ALIKE * sign.strength, sign.kind)
    if usual > _HABIT:
        return 0.0
    expected = math.log10(len(evidence.samples) * usual)
    rarity = min(seen.rarity, _MOST_RARE)
    if _has_own_words(sign):
        rarity += min(seen.bits_rarity, _MOST_RARE)
    odds = _BASE + sign.strength * (_PER_STRENGTH + _PER_EXPECTED * expected)
    odds += _PER_RARITY * rarity + _PER_CROWD * crowd
    odds += _PER_PART * (shared if part is None else part)
    if not _are_others_far(evidence, sign.kind):
        odds = max(odds, odds_alone(sign, seen, expected))
    return 1 / (1 + math.exp(-odds))


def _are_others_far(evidence: Evidence, kind: str) -> bool:
    """Return whether samples are far out that have no sign of a kind: then what all of them share
    explains the step, not the sign of one.
    """
    for other in evidence.samples:
        sign = sign_of(other)
        if other.z > _OTHERS_FAR and (sign is None or sign.kind != kind):
            return True
    return False


def odds_alone(sign: Sign, seen: SeenSample, expected: float) -> float:
    """Return the log-odds that a sample is what its sign says, whatever its part of the loss.

    `expected` is the logarithm of how many samples of such a batch naturally have such a sign.
    """
    far = _ALONE_PER_Z * min(max(seen.z, 0.0), _MOST_Z)
    if _has_own_words(sign) and math.isfinite(seen.bits_z):
        far += _ALONE_PER_BITS_Z * min(max(seen.bits_z, 0.0), _MOST_BITS_Z)
    of_sign = _ALONE_PER_STRENGTH + _ALONE_PER_EXPECTED * expected + far
    return _ALONE_BASE + sign.strength * of_sign


def _has_own_words(sign: Sign) -> bool:
    """Return whether a sign is about the words of the target, so that its bits per character
    count.
    """
    return sign.kind not in OF_LENGTH and not sign.of_source


def _part_of(evidence: Evidence, seen: Sequence[SeenSample]) -> float:
    """Return the part of the batch's excess loss that is in these samples."""
    own = sum(max(sample.excess, 0.0) for sample in seen)
    if not math.isfinite(own):
        return 1.0
    total = sum(max(sample.excess, 0.0) for sample in evidence.samples)
    return own / max(total, 1e-9)


def _shared(evidence: Evidence, kind: str) -> tuple[float, float]:
    """Return how rare it is that so many samples of a batch have a sign of a kind, and their part
    of the excess loss.

    The rarity is a negative power of ten, 0 for a single sample. It is the higher of two: of all
    samples with the sign, however weak, and of those with a clear one.
    """
    having = _having(evidence, kind)
    shares = evidence.usual_signs.share
    all_signs = [shares(seen.row, 0.0, kind) for seen, _ in having]
    clear = [
        shares(seen.row, _ALIKE * sign.strength, kind)
        for seen, sign in having
        if sign.strength >= CLEAR
    ]
    crowd = max(_crowd(all_signs, len(evidence.samples)), _crowd(clear, len(evidence.samples)))
    return min(crowd, _MOST_CROWDED), _part_of(evidence, [seen for seen, _ in having])


def _crowd(shares: list[float], num_rows: int) -> float:
    """Return how rare it is that this many of `num_rows` samples have a sign, if these fractions of
    samples have it naturally.
    """
    return (
        rarity_of(len(shares), num_rows * sorted(shares)[len(shares) // 2])
        if len(shares) > 1
        else 0.0
    )


def is_read(evidence: Evidence, seen: SeenSample) -> bool:
    """Return whether a sample has a sign that probably explains its loss."""
    sign = sign_of(seen)
    return sign is not None and sign.strength >= CLEAR and chance(evidence, sign, seen) >= _LIKELY


def sign_of(seen: SeenSample) -> Sign | None:
    """Return the first sign of a sample that may explain its loss.

    Truncated text is as likely as other text, except for its end, which comes too early.
    """
    ends_early = (seen.sample.token_losses or (0.0,))[-1] > _AT_THE_END * seen.excess
    is_cut = seen.tail < _CUT_TAIL or ends_early
    return next((sign for sign in seen.signs if sign.kind != TRUNCATED or is_cut), None)


def describe_suspects(evidence: Evidence, suspects: list[SeenSample]) -> str:
    """Describe how far the losses of the suspects are out."""
    worst = max(suspects, key=lambda suspect: suspect.z)
    loss = worst.sample.loss
    shown = "not finite" if loss is None or not math.isfinite(loss) else f"{loss:.3g}"
    bits = (
        ""
        if math.isnan(worst.bits)
        else f", {worst.bits:.2g} bits per character to the model ({worst.bits_z:+.1f} deviations)"
    )
    return (
        f"{len(suspects)} of {len(evidence.samples)} samples; the worst,"
        f" {sample_name(*worst.row.name)}, has a loss of {shown}, {worst.z:+.1f} deviations from"
        f" samples of its length{bits}"
    )


_KINDS: Final = {
    "garbled_text": (
        "garbled text",
        "Look for more of its kind in the file it came from before you train on.",
    ),
    "mis_decoded": (
        "text that was decoded with the wrong character set, or not at all",
        "Decode the file it came from with its real encoding and prepare it again.",
    ),
    "other_script": ("text in a script that the corpus is not in", "Filter the corpus by script."),
    "foreign_language": (
        "text in a language, or of words, that the corpus does not have",
        "Filter the corpus by language, or by how many of its words are known.",
    ),
    "markup": ("markup", "Strip tags and templates from the text before it is prepared."),
    "code": ("program code", "Keep code out of the corpus, or in a part of its own."),
    "table": ("tables of numbers or fields", "Leave tables out when text is extracted."),
    "log": ("lines of a log", "Leave logs out of the corpus."),
    "shouting": ("text in capitals", "Leave such text out, or put it into small letters."),
    "control_characters": (
        "control characters, or invisible ones",
        "Remove control characters and format characters when text is prepared.",
    ),
    "empty": ("samples without a word", "Leave out lines without letters or digits."),
    "repetition": (
        "a text that repeats itself on and on",
        "Filter documents by how much of them repeats.",
    ),
    COPIED: (
        "targets that are copies of their sources",
        "Leave out pairs whose two sides are the same.",
    ),
    SWAPPED: (
        "pairs whose source and target are swapped",
        "Swap the two sides of these lines back, and look for more in the same file.",
    ),
    TRUNCATED: (
        "pairs of which one side is cut off",
        "Check where these lines were cut: length limits, sentence splitting.",
    ),
}
"""For each kind of sign: what the batch holds, and what to do besides leaving the samples out."""
_OF_PAIRS: Final = {COPIED: "copied_target", SWAPPED: "swapped_pair", TRUNCATED: "truncated_target"}
"""The names of causes that are not called like their sign."""

RULES: Final = {
    _OF_PAIRS.get(kind, kind): CauseRule(
        title=f"The batch holds {what}.",
        advice=(SKIP, advice),
        blames="samples",
        family="pair" if kind in _OF_PAIRS else "text",
        needs="text",
        judge=partial(judge_kind, kind=kind),
        at_scene=partial(judge_kind_at_scene, kind=kind),
        in_doubt=(LOOK_AT_SAMPLES, advice),
    )
    for kind, (what, advice) in _KINDS.items()
}
"""The rules of these causes, by name."""
