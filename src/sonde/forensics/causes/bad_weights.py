"""Weights were broken before the step, by an earlier update, by a load, or by the machine.

They were not finite, or one value was far beyond all others.
"""

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
    if broken.input_rows:
        return None
    if broken.lone_weight and not broken.weights:
        return _lone(broken, step)
    if not broken.weights:
        return None
    sentence = (
        f"before step {step}, {len(broken.weights)} of {broken.num_weights} parameters and buffers"
        f" held values that are not finite; the first is {broken.weights[0]}"
    )
    return CauseFinding(
        score=0.97, evidence=[sentence], module=broken.weights[0], bad_checkpoint=step - 1
    )


def _lone(broken: BrokenNumbers, step: int) -> CauseFinding:
    sentence = (
        f"before step {step}, one value of {broken.lone_weight} is {broken.lone_value:.3g}, and all"
        f" its others are at most {broken.lone_others:.3g}: training does not do that"
    )
    return CauseFinding(
        score=0.97,
        evidence=[sentence],
        module=broken.lone_weight,
        bad_checkpoint=step - 1,
        title="One value of the weights is absurd: something other than training wrote it.",
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
