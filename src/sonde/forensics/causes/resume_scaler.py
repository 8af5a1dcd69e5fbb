"""The gradient scaler began again at a resume."""

from typing import Final

from sonde.checkpoint.resume_report import SCALER, ResumeReport
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.causes.resume_cause import Reach, blame, restart_before
from sonde.forensics.evidence import Evidence

_REACH: Final = Reach(0.8, 100)


def find(report: ResumeReport | None, step: int) -> CauseFinding | None:
    """Return the evidence of a resume report about the steps after it."""
    return blame(report, step, (SCALER,), _REACH)


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the report of the restart before the step."""
    return find(restart_before(evidence), evidence.case.step)


RULE: Final = CauseRule(
    title="The resume did not restore the gradient scaler.",
    advice=(
        'Load it: scaler.load_state_dict(checkpoint["scaler"]).',
        "Until it has found its scale again, updates are skipped, or small gradients are lost.",
    ),
    blames="setting",
    family="setting",
    judge=judge,
    needs="records",
)
