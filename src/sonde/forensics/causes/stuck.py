"""A training that has learned no more than token frequencies, and a lower rate would not help."""

from typing import Final

from sonde.forensics.causes import learning_rate
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence

_SCORE: Final = 0.6
"""The score: every training is at this point for a while, but not for half of its steps."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the loss is where it would be without any learning."""
    if not learning_rate.is_stuck(evidence):
        return None
    sentences = [learning_rate.describe_frequencies(evidence), evidence.describe_rate()]
    return CauseFinding(score=_SCORE, evidence=sentences)


RULE: Final = CauseRule(
    title="The training does not learn.",
    advice=(
        "Try a learning rate ten times lower and ten times higher for a few hundred steps.",
        (
            "Check that targets are shifted by one, that the loss has a graph, and that the"
            " optimizer holds all parameters."
        ),
    ),
    blames="setting",
    family="setting",
    needs="text",
    judge=judge,
)
