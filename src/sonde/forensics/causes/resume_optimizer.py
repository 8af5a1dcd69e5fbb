"""The state of the optimizer was not restored at a resume."""

from typing import Final

from sonde.checkpoint.resume_report import MOMENTS, STEP_COUNT, ResumeReport
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.causes.resume_cause import Reach, blame, restart_before
from sonde.forensics.evidence import Evidence

_REACH: Final = Reach(0.97, 1000)


def find(report: ResumeReport | None, step: int) -> CauseFinding | None:
    """Return the evidence of a resume report about the steps after it."""
    return blame(
        report,
        step,
        (
            MOMENTS,
            STEP_COUNT,
        ),
        _REACH,
    )


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the report of the restart before the step."""
    return find(restart_before(evidence), evidence.case.step)


RULE: Final = CauseRule(
    title="The resume did not restore the state of the optimizer.",
    advice=(
        'Load it after the optimizer is made: optimizer.load_state_dict(checkpoint["optimizer"]).',
        "With Hugging Face, check that the checkpoint has optimizer.pt and scheduler.pt.",
        "Then resume from the same checkpoint again.",
    ),
    blames="tensor",
    family="state",
    judge=judge,
    needs="records",
)
