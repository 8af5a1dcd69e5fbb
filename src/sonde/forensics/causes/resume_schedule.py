"""The schedule began again at a resume, or is at another step."""

from typing import Final

from sonde.checkpoint.resume_report import RATE, SCHEDULE, ResumeReport
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.causes.resume_cause import Reach, blame, restart_before
from sonde.forensics.evidence import Evidence

_REACH: Final = Reach(0.96)


def find(report: ResumeReport | None, step: int) -> CauseFinding | None:
    """Return the evidence of a resume report about the steps after it."""
    return blame(
        report,
        step,
        (
            RATE,
            SCHEDULE,
        ),
        _REACH,
    )


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the report of the restart before the step."""
    return find(restart_before(evidence), evidence.case.step)


RULE: Final = CauseRule(
    title="The schedule of the learning rate did not go on where it was.",
    advice=(
        'Load the scheduler: scheduler.load_state_dict(checkpoint["scheduler"]).',
        "Make it before you load it, and load the optimizer too, which holds the rate.",
        "Then resume from the same checkpoint again.",
    ),
    blames="setting",
    family="setting",
    judge=judge,
    needs="records",
)
