"""What the causes about a resume share: the report of the restart before a step, and how far its
effect reaches.

The evidence is what the run recorded at the restart (checkpoint/resume_report.py), before its first
update: nothing is replayed. A cause names a part of the state that was not restored. A change that
somebody may have wanted is no cause.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sonde.checkpoint.resume_report import ResumeReport, read_reports
from sonde.forensics.causes.cause_rule import CauseFinding
from sonde.forensics.evidence import Evidence


class Reach(NamedTuple):
    """How strong a loss speaks for itself, and for how many steps."""

    score: float
    """The score of the steps that follow at once."""
    num_steps: int | None = None
    """For how many steps; None if it lasts."""


def restart_before(evidence: Evidence) -> ResumeReport | None:
    """Return the report of the last restart before the step in question; None if there is none."""
    case = evidence.case
    return evidence.once("restart", lambda: last_report(case.run, case.step))


def last_report(run: Path, step: int) -> ResumeReport | None:
    """Return the report of the last restart before a step."""
    found = [report for report in read_reports(run) if report.step < step]
    return found[-1] if found else None


def blame(
    report: ResumeReport | None, step: int, parts: Sequence[str], reach: Reach
) -> CauseFinding | None:
    """Return the finding of a cause if one of its parts was not restored at the restart before."""
    if report is None:
        return None
    lost = [finding for finding in report.lost if finding.what in parts]
    if not lost:
        return None
    since = step - report.step
    score = reach.score
    if reach.num_steps is not None and since > reach.num_steps:
        score *= 0.5
    place = f" from {report.path}" if report.path else ""
    sentences = [
        f"the run resumed at step {report.from_step:,}{place}, {since:,} steps before this one",
        *(f"{finding.what}: {finding.text}" for finding in lost),
    ]
    return CauseFinding(score=score, evidence=sentences, bad_checkpoint=report.step + 1)
