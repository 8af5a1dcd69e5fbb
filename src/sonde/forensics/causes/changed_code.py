"""Code, packages, ranks or the command line changed at a restart."""

from typing import Final

from sonde.forensics.causes.rule import Finding, Rule
from sonde.forensics.evidence import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Judge whether something other than a setting changed shortly before the state went bad."""
    changes = [one for one in evidence.recent_changes if not one.settings]
    if not changes or not (evidence.is_state_bad or evidence.made.is_off):
        return None
    told = [f"after update {changes[-1].step}: {one}" for one in changes[-1].what]
    return Finding(score=0.3, evidence=told)


RULE: Final = Rule(
    title="The code or the packages changed between two starts of the run.",
    advice=("Replay the step with the code and the packages of the start before.",),
    blames="setting",
    family="setting",
    judge=judge,
)
