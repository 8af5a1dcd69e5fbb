"""Finite numbers became too large for the precision: the step is tried in float32."""

import math
from typing import Final

from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.scene_evidence import SceneEvidence
from sonde.forensics.seams import GRADIENT

_FAR_Z: Final = 3.0
"""The number of deviations by which a loss clearly differs."""
_LATELY: Final = 8
_SKIPPED: Final = 0.75
"""The score of a skipped update: it has no other cause, although it may do no harm."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the replayed step, and where it is finite by the step in float32."""
    if evidence.broken is not None and not evidence.case.is_skipped:
        return _judge_broken(evidence.broken)
    if evidence.lab.replay.seams.updater.precision == "float32":
        return None
    case = evidence.case
    if case.is_skipped:
        return _skipped(evidence)
    if case.is_loss_unusual:
        return _rounded(evidence)
    return _after_skipped(evidence) if case.is_event else None


def judge_scene(scene: SceneEvidence) -> CauseFinding | None:
    """Judge by the step at the scene."""
    return None if scene.broken is None else _judge_broken(scene.broken)


def _judge_broken(broken: BrokenNumbers) -> CauseFinding | None:
    if broken.was_broken_before or not broken.is_overflow:
        return None
    part = "forward" if broken.is_forward else "backward"
    place = f"the {part} of {broken.module}" if broken.module else f"the {part} pass"
    return CauseFinding(
        score=0.95 if broken.is_finite_in_float32 else 0.85,
        evidence=broken.describe(),
        module=broken.module or None,
        setting="precision",
        title=f"Numbers became too large for {broken.precision} in {place}.",
    )


def _skipped(evidence: Evidence) -> CauseFinding | None:
    """Judge an update that was not made because its gradients overflowed."""
    loss = evidence.lab.in_float32()
    if not math.isfinite(loss):
        return None
    precision = evidence.lab.replay.seams.updater.precision
    replayed = evidence.made.result.replayed_loss
    sentences = [f"in {precision} the loss is {replayed:.4g}, in float32 {loss:.4g}"]
    module = _first_bad_gradient(evidence)
    if module:
        sentences.append(f"the first gradient that is not finite is that of {module}")
    sentences.append("with a dynamic loss scale such a step now and then is normal")
    return CauseFinding(
        score=_SKIPPED, evidence=sentences, module=module or None, setting="precision"
    )


def _first_bad_gradient(evidence: Evidence) -> str:
    for module in evidence.made.modules:
        if module.kind == GRADIENT and module.num_nonfinite:
            return module.module
    return ""


def _rounded(evidence: Evidence) -> CauseFinding | None:
    """Judge whether float32 gives a normal loss where the run's precision gives a high one."""
    case = evidence.case
    loss = evidence.lab.in_float32()
    replayed = evidence.made.result.replayed_loss
    if not math.isfinite(loss) or case.losses.z(loss) > _FAR_Z:
        return None
    if not (replayed - loss) / case.losses.deviation > _FAR_Z:
        return None
    precision = evidence.lab.replay.seams.updater.precision
    sentence = f"in {precision} the loss is {replayed:.4g}, in float32 {loss:.4g}"
    return CauseFinding(score=0.75, evidence=[sentence], setting="precision")


def _after_skipped(evidence: Evidence) -> CauseFinding | None:
    """Judge whether a gradient event follows steps that were skipped because of gradients that are
    not finite.
    """
    case = evidence.case
    lately = range(case.step - _LATELY, case.step)
    before = [case.steps[step] for step in lately if step in case.steps]
    skipped = [
        record
        for record in before
        if record.skipped is not None and not math.isfinite(record.grad_norm or 0.0)
    ]
    if not skipped:
        return None
    sentence = (
        f"{len(skipped)} of the {len(before)} steps before it were not made: {skipped[-1].skipped}"
        f" at step {skipped[-1].step}"
    )
    return CauseFinding(score=_SKIPPED, evidence=[sentence], setting="precision")


RULE: Final = CauseRule(
    title="A number became too large for the precision.",
    advice=(
        "Train in bfloat16 or float32, or keep the named module in float32.",
        "Watch how large its activations get: they grow long before they overflow.",
    ),
    blames="setting",
    family="numbers",
    judge=judge,
    at_scene=judge_scene,
)
