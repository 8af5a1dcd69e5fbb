"""The step is like those around it, as far as can be seen; the limits of what can be seen are
reported.
"""

import math
from typing import Final

from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence

_VISIBLE: Final = 2.0
"""A sample whose loss is this rare, as a power of ten, would have been named."""
_FAR: Final = 1.0
_PER_FAR: Final = 0.1
_FARTHEST: Final = 2.0
"""The score is lower by `_PER_FAR` for every power of ten by which the samples are rare, up to
`_FARTHEST`.
"""
_OUT_Z: Final = 4.0
_WITH_OUTLIER: Final = 0.7
"""The maximum score if a sample is `_OUT_Z` deviations out, by its loss or by its bits per
character.
"""
_IN_EVENT: Final = 0.4
"""The score in a gradient event, which means something even if the loss is normal."""
_STATE: Final = 0.3
"""How much lower the score is if other batches have a high loss too, or if the replay diverged."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether nothing is unusual. The confidence of other causes reduces this one
    (diagnose.py).
    """
    case = evidence.case
    if case.is_loss_unusual or case.is_skipped:
        return None
    sentences = (
        []
        if math.isnan(case.loss_z)
        else [f"the loss is {case.loss_z:+.1f} deviations from that of calm steps"]
    )
    score = _IN_EVENT if case.is_event else 0.95
    if evidence.is_replayed:
        far = evidence.stands_out(evidence.samples)
        worst = max((sample.z for sample in evidence.samples), default=0.0)
        known = "no sample is out of the ordinary: " if far < _FAR else ""
        sentences.append(
            f"{known}the highest loss is {worst:+.1f} deviations from samples of its length"
        )
        sentences += _describe_limits(evidence)
        score -= _PER_FAR * min(far, _FARTHEST)
        if max((max(sample.z, sample.bits_z) for sample in evidence.samples), default=0.0) > _OUT_Z:
            score = min(score, _WITH_OUTLIER)
        score -= _STATE if evidence.is_state_bad or evidence.made.differs else 0.0
    return CauseFinding(score=max(score, 0.1), evidence=sentences)


def _describe_limits(evidence: Evidence) -> list[str]:
    """Describe what could not have been seen: how high the loss of one sample must be to stand
    out.
    """
    num = len(evidence.samples)
    usual = evidence.reference.losses
    if not num:
        return ["losses of single samples are not known"]
    z = usual.start + (_VISIBLE + math.log10(0.05 * num)) * math.log(10) * usual.slope
    deviation = evidence.case.losses.deviation
    typical = float(usual.model.expected(None, 1)[0])
    sentence = (
        f"one bad sample of {num} stands out from {max(z, 0.0):.1f} deviations above samples of its"
        " length"
    )
    if math.isfinite(deviation) and math.isfinite(typical):
        sentence += (
            f"; doubling its loss moves the loss of the step by {typical / num:.2g}, which varies"
            f" by {deviation:.2g} anyway"
        )
    return [sentence]


RULE: Final = CauseRule(
    title="The step is like those around it.",
    advice=("Nothing: train on.",),
    blames="nothing",
    family="none",
    needs="records",
    judge=judge,
)
