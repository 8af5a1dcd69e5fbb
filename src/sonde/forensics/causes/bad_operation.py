"""An operation gave NaN or an infinite number from moderate, finite ones."""

import math
from typing import Final

from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.scene_evidence import SceneEvidence


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the replayed step."""
    if evidence.broken is None or evidence.case.has_exploded_before:
        return None  # after an explosion any operation breaks in the end
    return _judge(evidence.broken)


def judge_scene(scene: SceneEvidence) -> CauseFinding | None:
    """Judge by the step at the scene. If it fails for a few rows only, they are named."""
    if scene.has_exploded_before:
        return None  # as above
    finding = None if scene.broken is None else _judge(scene.broken)
    if finding is None or scene.broken is None or not scene.broken.is_of_few_rows:
        return finding
    rows = [row.suspect for row in scene.rows if not math.isfinite(row.loss)]
    return finding._replace(suspects=rows, blames="samples")


def _judge(broken: BrokenNumbers) -> CauseFinding | None:
    if broken.was_broken_before or broken.is_overflow:
        return None
    if not broken.is_run_again and broken.precision != "float32":
        return None  # it may be an overflow
    part = "forward" if broken.is_forward else "backward"
    unknown = "an operation outside the modules of the model"
    if not broken.is_run_again:
        unknown = "an operation that was not looked for"
    place = broken.module or unknown
    if broken.is_of_few_rows:
        place += f", for {len(broken.loss_rows)} of {broken.num_rows} rows,"
    return CauseFinding(
        score=0.92 if broken.module or broken.operation else 0.8,
        evidence=broken.describe(),
        module=broken.module or None,
        title=f"The {part} of {place} gives numbers that are not finite from finite ones.",
    )


RULE: Final = CauseRule(
    title="An operation gives numbers that are not finite from finite ones.",
    advice=(
        (
            "Look at the named module: a division by zero, a logarithm or square root of 0, a mask"
            " that leaves a row without any position, a kernel of your own."
        ),
        "Try the same step with a plain operation instead of a fused or compiled one.",
    ),
    blames="tensor",
    family="numbers",
    judge=judge,
    at_scene=judge_scene,
)
