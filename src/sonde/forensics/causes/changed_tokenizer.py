"""The data was made with a different tokenizer than the run began with."""

from typing import Final

from sonde.forensics.causes import changed_data
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the fingerprint of the tokenizer differs from the manifest."""
    if evidence.change is None or not evidence.change.is_tokenizer:
        return None
    return changed_data.finding(evidence)


RULE: Final = CauseRule(
    title="The data was made with another tokenizer than the run began with.",
    advice=("Put the tokenizer back and prepare the data again, or start a new run.",),
    blames="setting",
    family="setting",
    needs="records",
    judge=judge,
)
