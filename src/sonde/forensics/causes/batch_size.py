"""A batch with an unusual size: the last one of an epoch, or a change of batching."""

from typing import Final

from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence

_RATIO: Final = 2.5
"""A batch has an unusual size if it differs by this factor."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the loss or gradient is unusual and the batch is small or large."""
    case = evidence.case
    weights = sorted(step.weight for step in case.calm)
    if not weights or weights[len(weights) // 2] <= 0:
        return None
    usual = weights[len(weights) // 2]
    ratio = case.record.weight / usual
    if 1 / _RATIO < ratio < _RATIO or not (case.is_loss_unusual or case.is_event):
        return None
    sentences = [f"it has {case.record.weight:.0f} target tokens, usually there are {usual:.0f}"]
    is_small = ratio < 1
    if is_small:
        sentences.append("the mean over few tokens varies more, and its update is as large as any")
    # A small batch explains a high loss only if no single sample is an outlier.
    far = max((sample.tail for sample in evidence.samples), default=0.0)
    return CauseFinding(
        score=0.7 if is_small and far < 1 else 0.4, evidence=sentences, setting="max_tokens"
    )


RULE: Final = CauseRule(
    title="The batch is of another size than those around it.",
    advice=(
        (
            "Check the batching: max_tokens, update_freq, the number of ranks, the last batch of an"
            " epoch."
        ),
    ),
    blames="setting",
    family="setting",
    judge=judge,
)
