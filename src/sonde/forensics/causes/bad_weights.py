"""Weights were not finite before the step: an earlier update, or a load, broke them."""

from typing import Final

from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.causes.cause_rule import GO_BACK, CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.scene_evidence import SceneEvidence


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the state before the replayed step."""
    return None if evidence.broken is None else _judge(evidence.broken, evidence.case.step)


def judge_scene(scene: SceneEvidence) -> CauseFinding | None:
    """Judge by the state before the step at the scene."""
    return None if scene.broken is None else _judge(scene.broken, scene.step)


def _judge(broken: BrokenNumbers, step: int) -> CauseFinding | None:
    if not broken.weights or broken.input_rows:
        return None
    sentence = (
        f"before step {step}, {len(broken.weights)} of {broken.num_weights} parameters and buffers"
        f" held values that are not finite; the first is {broken.weights[0]}"
    )
    return CauseFinding(
        score=0.97, evidence=[sentence], module=broken.weights[0], bad_checkpoint=step - 1
    )


RULE: Final = CauseRule(
    title="The weights were not finite before this step.",
    advice=(
        GO_BACK,
        (
            'Record with on_event="skip" or "stop": then no update with a gradient that is not'
            " finite reaches the weights."
        ),
    ),
    blames="tensor",
    family="numbers",
    judge=judge,
    at_scene=judge_scene,
)
