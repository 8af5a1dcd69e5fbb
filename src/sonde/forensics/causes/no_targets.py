"""A batch in which no target counts: the mean of their losses is 0 divided by 0."""

from typing import Final

from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.scene_evidence import SceneEvidence


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the replayed step."""
    return _judge(evidence.broken)


def judge_scene(scene: SceneEvidence) -> CauseFinding | None:
    """Judge by the step at the scene."""
    return _judge(scene.broken)


def _judge(broken: BrokenNumbers | None) -> CauseFinding | None:
    if broken is None or not broken.has_no_targets:
        return None
    sentence = (
        "none of the targets of this batch counts, so the mean of their losses is 0 divided by 0"
    )
    return CauseFinding(score=0.97, evidence=[sentence])


RULE: Final = CauseRule(
    title="No target of the batch counts.",
    advice=(
        "Leave such a batch out, or divide by at least 1.",
        "Look at how labels are masked: rows may be cut off before their answer begins.",
    ),
    blames="samples",
    family="numbers",
    judge=judge,
    at_scene=judge_scene,
)
