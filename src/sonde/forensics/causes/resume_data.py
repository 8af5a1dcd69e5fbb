"""The data began again at a resume, or are at another place."""

from typing import Final

from sonde.checkpoint.resume_report import DATA, ResumeReport
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.causes.resume_cause import Reach, blame, restart_before
from sonde.forensics.evidence import Evidence

_REACH: Final = Reach(0.85)


def find(report: ResumeReport | None, step: int) -> CauseFinding | None:
    """Return the evidence of a resume report about the steps after it."""
    return blame(report, step, (DATA,), _REACH)


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the report of the restart before the step."""
    return find(restart_before(evidence), evidence.case.step)


RULE: Final = CauseRule(
    title="The data did not go on where they were.",
    advice=(
        "Skip what was trained on, or save and load the state of the loader.",
        "Samples that are seen twice are learnt twice; those left out are not learnt.",
    ),
    blames="setting",
    family="setting",
    judge=judge,
    needs="records",
)
