"""The step is like those around it, as far as can be seen; the limits of what can be seen are reported."""

import math
from typing import Final

from sonde.forensics.causes.rule import Finding, Rule
from sonde.forensics.evidence import Evidence
from sonde.forensics.samples_seen import SeenSample, rarity_of
from sonde.texts.signs import CLEAR

_VISIBLE: Final = 2.0
"""A sample whose loss is this rare, as a power of ten, would have been named."""
_FAR: Final = 1.0
_PER_FAR: Final = 0.15
"""The loss of confidence per power of ten by which the samples are rarer than those of other batches."""
_LEAST: Final = 0.55
"""The minimum score of a step with a normal loss: another cause needs evidence."""
_IN_EVENT: Final = 0.4
"""The score in a gradient event, which means something even if the loss is normal."""
_ODD: Final = 0.25
_ODD_Z: Final = 3.5
"""If a sample has a clear sign and its bits per character are `_ODD_Z` deviations high, confidence drops by `_ODD`."""
_PER_BITS: Final = 0.1
"""The loss of confidence per power of ten of rarity in bits per character: such a sample may be unusual although easy."""


def judge(evidence: Evidence) -> Finding | None:
    """Judge whether nothing is unusual. The confidence of other causes reduces this one (diagnose.py)."""
    case = evidence.case
    if case.is_loss_unusual or case.is_skipped:
        return None
    told = [] if math.isnan(case.loss_z) else [f"the loss is {case.loss_z:+.1f} deviations from that of calm steps"]
    score = _IN_EVENT if case.is_event else 0.95
    if evidence.is_replayed:
        far = evidence.stands_out(evidence.samples)
        worst = max((one.z for one in evidence.samples), default=0.0)
        known = "no sample is out of the ordinary: " if far < _FAR else ""
        told.append(f"{known}the highest loss is {worst:+.1f} deviations from samples of its length")
        told += _told_of_limits(evidence, _VISIBLE)
        is_calm = not (case.is_event or evidence.is_state_bad or evidence.made.is_off)
        score -= _PER_FAR * max(0.0, min(far + _FAR / 2, 4.0))
        score -= _PER_BITS * max(0.0, min(_rarest_bits(evidence), 3.0))
        score -= _ODD if any(map(_is_odd, evidence.samples)) else 0.0
        score -= 0.3 if evidence.is_state_bad or evidence.made.is_off else 0.0
        score = max(score, _LEAST if is_calm else 0.0)
    return Finding(score=max(score, 0.1), evidence=told)


def _told_of_limits(evidence: Evidence, rarity: float) -> list[str]:
    """Describe what could not have been seen: how high the loss of one sample must be to stand out at this rarity."""
    num, usual = len(evidence.samples), evidence.reference.losses
    if not num:
        return ["losses of single samples are not known"]
    z = usual.start + (rarity + math.log10(0.05 * num)) * math.log(10) * usual.slope
    deviation = evidence.case.losses.deviation
    typical = float(usual.model.expected(None, 1)[0])
    told = f"one bad sample of {num} stands out from {max(z, 0.0):.1f} deviations above samples of its length"
    if math.isfinite(deviation) and math.isfinite(typical):
        told += f"; doubling its loss moves the loss of the step by {typical / num:.2g}, which varies by {deviation:.2g} anyway"
    return [told]


def _is_odd(seen: SeenSample) -> bool:
    """Return whether a sample has a clear sign and many bits per character."""
    return bool(seen.signs) and seen.signs[0].strength >= CLEAR and seen.bits_z > _ODD_Z


def _rarest_bits(evidence: Evidence) -> float:
    """Return how rare such bits per character are in a batch, for one sample or several, as a power of ten."""
    num, known = len(evidence.samples), sorted((one.bits_rarity for one in evidence.samples), reverse=True)
    return max((rarity_of(count, num * 10.0**-rarity) for count, rarity in enumerate(known[:8], 1)), default=0.0)


RULE: Final = Rule(
    title="The step is like those around it.",
    advice=("Nothing: train on.",),
    blames="nothing",
    family="none",
    needs=frozenset(),
    judge=judge,
)
