"""The random generators were not restored at a resume."""

from typing import Final

from sonde.checkpoint.resume_report import GENERATORS, ResumeReport
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.causes.resume_cause import Reach, blame, restart_before
from sonde.forensics.evidence import Evidence

_REACH: Final = Reach(0.5, 100)


def find(report: ResumeReport | None, step: int) -> CauseFinding | None:
    """Return the evidence of a resume report about the steps after it."""
    return blame(report, step, (GENERATORS,), _REACH)


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge by the report of the restart before the step."""
    return find(restart_before(evidence), evidence.case.step)


RULE: Final = CauseRule(
    title="The resume did not restore the random generators.",
    advice=(
        "Save torch.get_rng_state(), and those of CUDA, numpy and random; set them last.",
        "Without them the run is as good, but not the same as without the restart.",
    ),
    blames="setting",
    family="setting",
    judge=judge,
    needs="records",
)
