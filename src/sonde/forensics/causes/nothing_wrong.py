"""The step is like those around it, as far as can be seen; and what could not be seen is said."""

import math
from typing import Final

from sonde.forensics.causes.rule import Finding, Rule
from sonde.forensics.evidence import Evidence
from sonde.forensics.evidence_told import told_of_limits
from sonde.forensics.samples_seen import surprise

_VISIBLE: Final = 2.0
"""A sample whose loss is so rare, as a power of ten, would have been named."""


_LONG_Z: Final = 6.0
_LONG: Final = 0.2
"""A sample that costs so many deviations more bits per character is of another kind, though the model may find it easy: so much less is certain."""


def judge(evidence: Evidence) -> Finding | None:
    """Is nothing unusual? How sure the other causes are takes away from this one (diagnose.py)."""
    case = evidence.case
    if case.is_loss_unusual or case.is_skipped:
        return None
    told = [] if math.isnan(case.loss_z) else [f"the loss is {case.loss_z:+.1f} deviations from that of calm steps"]
    score = 0.95
    if evidence.is_replayed:
        far = surprise(evidence.samples, len(evidence.samples))
        worst = max((one.z for one in evidence.samples), default=0.0)
        known = "no sample is out of the ordinary: " if far < _VISIBLE else ""
        told.append(f"{known}the highest loss is {worst:+.1f} deviations from samples of its length")
        told += told_of_limits(evidence, _VISIBLE)
        score -= 0.15 * max(0.0, min(far, 4.0))
        score -= _LONG if any(one.bits_z > _LONG_Z for one in evidence.samples) else 0.0
        score -= 0.3 if evidence.is_state_bad or evidence.made.is_off else 0.0
    return Finding(score=max(score, 0.1), evidence=told)


RULE: Final = Rule(
    name="nothing_wrong",
    title="The step is like those around it.",
    advice=("Nothing: train on.",),
    blames="nothing",
    family="none",
    needs=frozenset(),
    judge=judge,
)
