"""A number became too large for the precision: the step is replayed in float32."""

import math
from typing import Final

from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.seams import ACTIVATION, GRADIENT

_FAR_Z: Final = 3.0
"""The number of deviations by which a loss clearly differs."""
_LATELY: Final = 8
_SKIPPED: Final = 0.75
"""The score of a skipped update: it has no other cause, although it may do no harm."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether float32 gives a finite, normal loss where the run's precision did not."""
    case = evidence.case
    lab = evidence.lab
    precision = lab.replay.seams.updater.precision
    if precision == "float32" or not (case.is_loss_unusual or case.is_skipped):
        return None if precision == "float32" or not case.is_event else _not_made(evidence)
    loss = lab.in_float32()
    replayed = evidence.made.result.replayed_loss
    if not math.isfinite(loss) or (math.isfinite(replayed) and case.losses.z(loss) > _FAR_Z):
        return None
    modules = [one for one in evidence.made.modules if one.num_nonfinite]
    # The first activation, in order of execution; if there is none, the first gradient.
    broken = next(
        (one for kind in (ACTIVATION, GRADIENT) for one in modules if one.kind == kind), None
    )
    sentences = [f"in {precision} the loss is {replayed:.4g}, in float32 {loss:.4g}"]
    if math.isfinite(replayed) and broken is None:
        far = (replayed - loss) / case.losses.deviation
        return (
            CauseFinding(score=0.75, evidence=sentences, setting="precision")
            if far > _FAR_Z
            else None
        )
    module = None
    if broken is not None:
        module = broken.module
        sentences.append(
            f"the first {broken.kind} that is not finite is that of {module}:"
            f" {broken.num_nonfinite} elements"
        )
    if math.isfinite(replayed):
        sentences.append(
            "the loss itself is finite: with a dynamic loss scale such a step now and then is"
            " normal"
        )
        return CauseFinding(
            score=_SKIPPED if case.is_skipped else 0.3,
            evidence=sentences,
            module=module,
            setting="precision",
        )
    return CauseFinding(score=0.95, evidence=sentences, module=module, setting="precision")


def _not_made(evidence: Evidence) -> CauseFinding | None:
    """Judge whether a gradient event follows steps that were skipped because of non-finite
    gradients.
    """
    case = evidence.case
    before = [
        case.steps[step] for step in range(case.step - _LATELY, case.step) if step in case.steps
    ]
    skipped = [
        one for one in before if one.skipped is not None and not math.isfinite(one.grad_norm or 0.0)
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
        "ModuleWatch its activations: they grow long before they overflow.",
    ),
    blames="setting",
    family="state",
    judge=judge,
)
