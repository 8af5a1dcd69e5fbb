"""The batch itself holds numbers that are not finite."""

from typing import Final

from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.scene_evidence import SceneEvidence
from sonde.forensics.verdict import Suspect

_NUM_SHOWN: Final = 8


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the replayed step."""
    if evidence.broken is None:
        return None
    return _judge(evidence.broken, [])


def judge_scene(scene: SceneEvidence) -> CauseFinding | None:
    """Judge by the step at the scene."""
    if scene.broken is None:
        return None
    suspects = [row.suspect for row in scene.rows if row.oddity]
    return _judge(scene.broken, suspects)


def _judge(broken: BrokenNumbers, suspects: list[Suspect]) -> CauseFinding | None:
    rows = broken.input_rows
    if not rows:
        return None
    shown = ", ".join(map(str, rows[:_NUM_SHOWN]))
    more = f" and {len(rows) - _NUM_SHOWN} more" if len(rows) > _NUM_SHOWN else ""
    sentence = (
        f"{len(rows)} of {broken.num_rows} rows of the batch hold NaN or infinite values:"
        f" {shown}{more} (counted from 0)"
    )
    return CauseFinding(score=0.97, evidence=[sentence], suspects=suspects)


RULE: Final = CauseRule(
    title="The batch holds values that are not finite.",
    advice=(
        "Look at where these rows come from: a missing value, a division by zero, a broken file.",
        "Check every batch for finite values where it is made.",
    ),
    blames="samples",
    family="numbers",
    judge=judge,
    at_scene=judge_scene,
)
