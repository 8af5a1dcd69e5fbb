"""The data is not what the run began with."""

from typing import Final

from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence

_OTHER_TOKENS: Final = 0.85
"""The score of a changed tokenizer if the loss is normal: it changes the tokens of every sample,
whether or not the loss shows it yet.
"""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the fingerprints of the data differ from the manifest."""
    change = evidence.change
    if change is None or change.is_tokenizer:
        return None
    if change.problem:
        sentences = [f"the data cannot be opened: {change.problem}"]
        return CauseFinding(
            score=0.6 if evidence.case.is_loss_unusual else 0.45, evidence=sentences
        )
    return finding(evidence)


def finding(evidence: Evidence) -> CauseFinding:
    """Return the evidence for changed files: whether the step is reproduced with the current
    ones.
    """
    change = evidence.change
    is_unusual = evidence.case.is_loss_unusual
    sentences = [f"not as the manifest has it: {', '.join(change.names if change else ())}"]
    if not evidence.is_replayed:
        sentences.append("the step cannot be made again with it")
        return CauseFinding(score=0.85 if is_unusual else 0.5, evidence=sentences)
    if evidence.made.result.reproduced:
        sentences.append(
            "the step made again with the data as it is now gives the recorded loss: it is what the"
            " run was fed"
        )
        calm = _OTHER_TOKENS if change is not None and change.is_tokenizer else 0.5
        return CauseFinding(score=0.97 if is_unusual else calm, evidence=sentences)
    sentences.append("the step made again gives another loss: the data may have changed after it")
    return CauseFinding(score=0.7, evidence=sentences)


RULE: Final = CauseRule(
    title="The data is not what the run began with.",
    advice=("Put the data back that the run began with, or start a new run.",),
    blames="setting",
    family="setting",
    needs="records",
    judge=judge,
)
