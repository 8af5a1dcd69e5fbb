"""Something is wrong, but the experiments do not show what: the fallback, judged after all
others.
"""

import math
from typing import Final

from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence, describe_gradients
from sonde.forensics.scene_evidence import SceneEvidence

_BAD_STATE: Final = "The state is bad: other batches have a higher loss too."
_EXPLODED: Final = "The training had exploded before this step."
_LOOK_BEFORE: Final = (
    "Look at the first of these steps: `sonde spikes RUN` lists them.",
    "Clip gradients, lower the learning rate, and look at what is new in the batches from there.",
)
_STATE_ADVICE: Final = (
    (
        "It is not this batch. Look at what changed the training before it: the learning rate, a"
        " checkpoint that was loaded, code that writes to the weights."
    ),
    "`sonde diagnose RUN --step {step}` replays the step and can say more.",
)


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the step is unusual at all. The confidence of other causes reduces this one
    (diagnose.py).
    """
    case = evidence.case
    if not (
        case.is_loss_unusual
        or case.is_skipped
        or case.is_event
        or (evidence.is_replayed and (evidence.is_state_bad or evidence.made.differs))
    ):
        return None
    sentences = []
    if not math.isnan(case.loss_z):
        sentences.append(f"the loss is {case.loss_z:.1f} deviations above that of calm steps")
    if evidence.is_replayed and (case.is_event or case.is_loss_unusual):
        sentences += describe_gradients(evidence)
    if case.has_exploded_before:
        return CauseFinding(score=1.0, evidence=sentences, title=_EXPLODED, advice=_LOOK_BEFORE)
    if evidence.is_replayed and evidence.is_state_bad:
        here = evidence.state.here.median
        sentences.append(f"other batches have a high loss at this state too: {here:.4g}")
        return CauseFinding(score=0.45, evidence=sentences, title=_BAD_STATE, advice=_STATE_ADVICE)
    return CauseFinding(score=0.45, evidence=sentences)


def judge_scene(scene: SceneEvidence) -> CauseFinding | None:
    """Say what the scene shows, where it points to no cause."""
    if scene.metric == "sample":
        return None
    if scene.has_exploded_before:
        sentence = f"the loss was {scene.loss_before:.3g} at the step before"
        return CauseFinding(score=1.0, evidence=[sentence], title=_EXPLODED, advice=_LOOK_BEFORE)
    if scene.is_state_bad:
        return CauseFinding(
            score=1.0,
            evidence=[scene.describe_state()],
            title=_BAD_STATE,
            bad_checkpoint=scene.step - 1,
            advice=_STATE_ADVICE,
        )
    return CauseFinding(score=0.5, evidence=_what_is_missing(scene), title=_title(scene))


def _title(scene: SceneEvidence) -> str | None:
    """Return what can be said without a cause; None for nothing more than usual."""
    if scene.broken is not None:
        return "Numbers are not finite, and the scene does not show why."
    if scene.metric == "grad_norm":
        return "The gradients are large, and the scene does not show why."
    if scene.is_this_batch_high and not scene.row_losses:
        return "Why cannot be told: other batches are normal, and rows are not seen by themselves."
    if scene.is_this_batch_high:
        return "Why cannot be told: other batches are normal, and it is not a few rows."
    return None


def _what_is_missing(scene: SceneEvidence) -> list[str]:
    if scene.is_exact is None:
        return ["the step could not be run again at the scene"]
    if not scene.is_exact:
        return ["the step does not give the same loss when it is run again"]
    sentences = []
    if len(scene.others_now):
        sentences.append(scene.describe_batch())
    if scene.shape and scene.other_shapes and scene.shape not in scene.other_shapes:
        usual = ", ".join(scene.other_shapes)
        sentences.append(f"its first tensor is {scene.shape}, that of the others {usual}")
    if scene.metric == "grad_norm":
        sentences.append("its loss is not what stands out, so no row is blamed")
    elif not scene.row_losses:
        problem = scene.row_problem or "their losses are not seen"
        sentences.append(f"which of its rows did it is not known: {problem}")
    return sentences


RULE: Final = CauseRule(
    title="Something is wrong, and the experiments do not say what.",
    advice=(
        "Look at the samples yourself: `sonde spikes RUN --step {step}`.",
        "Save checkpoints more often: it narrows the search.",
    ),
    blames="nothing",
    family="none",
    needs="records",
    judge=judge,
    at_scene=judge_scene,
)
