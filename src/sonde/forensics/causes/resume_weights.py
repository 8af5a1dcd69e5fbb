"""The weights were not restored at a resume, or not all of them."""

from typing import Final

from sonde.checkpoint.resume_report import WEIGHTS, ResumeReport
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.causes.resume_cause import Reach, blame, restart_before
from sonde.forensics.evidence import Evidence

_REACH: Final = Reach(1.0, 1000)


def find(report: ResumeReport | None, step: int) -> CauseFinding | None:
    """Return the evidence of a resume report about the steps after it."""
    return blame(report, step, (WEIGHTS,), _REACH)


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the report of the restart before the step."""
    return find(restart_before(evidence), evidence.case.step)


RULE: Final = CauseRule(
    title="The resume did not restore the weights.",
    advice=(
        'Load the weights before the first step: model.load_state_dict(checkpoint["model"]).',
        "Check that the names fit: strict=False leaves out silently what does not.",
        "Then resume from the same checkpoint again.",
    ),
    blames="tensor",
    family="state",
    judge=judge,
    needs="records",
)
