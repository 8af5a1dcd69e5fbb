"""Something is wrong, but the experiments do not show what: the fallback, judged after all
others.
"""

import math
from typing import Final

from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence, describe_gradients


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
    sentences = (
        []
        if math.isnan(case.loss_z)
        else [f"the loss is {case.loss_z:.1f} deviations above that of calm steps"]
    )
    sentences += (
        describe_gradients(evidence)
        if evidence.is_replayed and (case.is_event or case.is_loss_unusual)
        else []
    )
    return CauseFinding(score=0.45, evidence=sentences)


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
)
