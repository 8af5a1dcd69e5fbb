"""A part of the state that a resume did not restore: a cause for each, listed in `_LOSSES`.

The evidence is what the run recorded at the restart before the step (checkpoint/resume_report.py),
before its first update: nothing is replayed. A change that somebody may have wanted is no cause.
"""

from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from sonde.checkpoint.resume_report import (
    DATA,
    GENERATORS,
    MOMENTS,
    RATE,
    SCALER,
    SCHEDULE,
    STEP_COUNT,
    WEIGHTS,
    ResumeReport,
    read_reports,
)
from sonde.forensics.causes.cause_rule import Blames, CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.scene_evidence import SceneEvidence

_OF_DAMAGE: Final = 0.5
"""How much a finding counts if the checkpoint holds tensors that training cannot have made."""
_FADED: Final = 0.5
"""What is left of a score beyond the reach of a loss."""


class Loss(NamedTuple):
    """Parts of the state that belong together, and what it means that they were lost."""

    parts: tuple[str, ...]
    title: str
    advice: tuple[str, ...]
    score: float
    """How strongly it speaks for itself at the steps that follow."""
    reach: int | None = None
    """For how many steps; None if it lasts."""
    blames: Blames = "setting"


_AGAIN: Final = "Then resume from the same checkpoint again; docs/resume.md says how."

_LOSSES: Final = {
    "resume_weights": Loss(
        parts=(WEIGHTS,),
        title="The resume did not restore the weights.",
        advice=(
            'Load them before the first step: model.load_state_dict(checkpoint["model"]).',
            "Check the names: strict=False leaves out silently what does not fit.",
            _AGAIN,
        ),
        score=1.0,
        reach=1000,
        blames="tensor",
    ),
    "resume_optimizer": Loss(
        parts=(MOMENTS, STEP_COUNT),
        title="The resume did not restore the state of the optimizer.",
        advice=(
            'Load it before the first step: optimizer.load_state_dict(checkpoint["optimizer"]).',
            "A Hugging Face checkpoint needs both optimizer.pt and scheduler.pt.",
            _AGAIN,
        ),
        score=0.97,
        reach=1000,
        blames="tensor",
    ),
    "resume_schedule": Loss(
        parts=(RATE, SCHEDULE),
        title="The learning rate did not go on where it was when the run resumed.",
        advice=(
            'Load the scheduler: scheduler.load_state_dict(checkpoint["scheduler"]).',
            "Make the scheduler before you load the optimizer, which holds the rate.",
            _AGAIN,
        ),
        score=0.96,
    ),
    "resume_data": Loss(
        parts=(DATA,),
        title="The data did not go on where they were when the run resumed.",
        advice=(
            "Skip the batches that were trained on, or save and load the state of the loader.",
            _AGAIN,
        ),
        score=0.85,
    ),
    "resume_generators": Loss(
        parts=(GENERATORS,),
        title="The resume did not restore the random generators.",
        advice=(
            "Save torch.get_rng_state(), and those of the device, numpy and random; set them last.",
            "Without them the run is not worse, only not the same as without the restart.",
        ),
        score=0.4,
        reach=100,
    ),
    "resume_scaler": Loss(
        parts=(SCALER,),
        title="The resume did not restore the gradient scaler.",
        advice=(
            'Load it before the first step: scaler.load_state_dict(checkpoint["scaler"]).',
            _AGAIN,
        ),
        score=0.8,
        reach=100,
    ),
}


def last_report(run: Path, step: int) -> ResumeReport | None:
    """Return the report of the last restart before a step; None if there was none."""
    found = [report for report in read_reports(run) if report.step < step]
    return found[-1] if found else None


def find(name: str, report: ResumeReport | None, step: int) -> CauseFinding | None:
    """Return what a resume report says for a cause at a step after it."""
    loss = _LOSSES[name]
    lost = [] if report is None else [part for part in report.lost if part.what in loss.parts]
    if report is None or not lost:
        return None
    since = step - report.step
    is_near = loss.reach is None or since <= loss.reach
    place = f" from {report.path}" if report.path else ""
    sentences = [
        f"the run resumed at step {report.from_step:,}{place}, {since:,} steps before this one",
        *(f"{finding.what}: {finding.text}" for finding in lost),
    ]
    return CauseFinding(
        score=loss.score if is_near else loss.score * _FADED,
        evidence=sentences,
        bad_checkpoint=report.step + 1,
    )


def judge(evidence: Evidence, *, name: str) -> CauseFinding | None:
    """Judge by what the run recorded at the restart before the step."""
    case = evidence.case
    report = evidence.once("resume report", lambda: last_report(case.run, case.step))
    finding = find(name, report, case.step)
    if finding is None or not evidence.is_replayed or not evidence.has_bad_tensors:
        return finding
    # The checkpoint itself is damaged: what was restored from it says no more than that.
    return finding._replace(score=_OF_DAMAGE * finding.score)


def judge_scene(scene: SceneEvidence, *, name: str) -> CauseFinding | None:
    """Judge by what this process reported when it resumed."""
    return find(name, scene.resume, scene.step)


RULES: Final = {
    name: CauseRule(
        title=loss.title,
        advice=loss.advice,
        blames=loss.blames,
        family="setting",
        judge=partial(judge, name=name),
        needs="records",
        at_scene=partial(judge_scene, name=name),
    )
    for name, loss in _LOSSES.items()
}
"""The rules of these causes, by name."""
