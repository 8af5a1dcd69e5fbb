"""Code, packages, ranks or the command line changed at a restart."""

from typing import Final

from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether something other than a setting changed shortly before the state went bad."""
    changes = [change for change in evidence.recent_changes if not change.settings]
    if not changes or not (evidence.is_state_bad or evidence.made.differs):
        return None
    sentences = [f"after step {changes[-1].step}: {name}" for name in changes[-1].what]
    return CauseFinding(score=0.3, evidence=sentences)


RULE: Final = CauseRule(
    title="The code or the packages changed between two starts of the run.",
    advice=("Replay the step with the code and the packages of the start before.",),
    blames="setting",
    family="setting",
    judge=judge,
)
