"""Diagnose a spike: run experiments by replay, let each cause judge them, and return a ranked verdict.

    verdict = diagnose(Path("runs/a"))              # the newest event that can be replayed, or the step that stands out most
    verdict.causes[0].cause                          # "garbled_text"

Each cause (causes/) is asked for what speaks for it, and `Evidence` runs the experiments they need, each once. This
module only ranks the answers. If the step is like those around it, the verdict says that nothing is wrong; if the
evidence points to no cause, the verdict says so.

Cost: the updates since the last checkpoint again, and some dozens of forward passes. Nothing is written to the run; use
`write_verdict` for that.
"""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from sonde.errors import SettingError, SondeError
from sonde.forensics.calibration import confidence_of
from sonde.forensics.case import open_case, steps_in_question
from sonde.forensics.causes import rules
from sonde.forensics.causes.rule import Need
from sonde.forensics.changes import data_change
from sonde.forensics.evidence import Evidence, told_of_gradients
from sonde.forensics.laboratory import Laboratory
from sonde.forensics.replay import Replay
from sonde.forensics.seams import Seams
from sonde.forensics.tensor_test import note_state
from sonde.forensics.verdict import NOTHING, UNKNOWN, Cause, Experiment, ModuleStatistics, Verdict
from sonde.records.replay_order import ReplayOptions

_LAST: Final = (UNKNOWN, NOTHING)
"""These come last in the list, and get the confidence that the other causes leave."""
_LEAST: Final = 0.02
"""Causes with a lower confidence are not listed."""


def diagnose(
    run: str | Path, step: int | None = None, *, options: ReplayOptions | None = None, seams: Seams | None = None
) -> Verdict:
    """Diagnose what was wrong with a step; by default, with the newest recorded event that can be replayed.

    `options` controls how the run is rebuilt. `seams` provides states, batches and updates for a run that sonde's
    trainer did not make.
    """
    started = time.monotonic()
    evidence, failed = _open(Path(run), step, options=options, seams=seams)
    verdict = conclude(evidence)
    if failed is not None:
        done, found = "the run was to be built again", f"it cannot be: {failed}"
        experiment = Experiment(question="does it happen again?", done=done, found=found)
        verdict = replace(verdict, experiments=(experiment,))
    return replace(verdict, seconds=time.monotonic() - started)


def _open(
    run: Path, step: int | None, *, options: ReplayOptions | None, seams: Seams | None
) -> tuple[Evidence, SondeError | None]:
    """Return the evidence about `step`; by default, about the newest event that can be replayed, or the step that stands out most."""
    if step is not None:
        return open_evidence(run, step, options=options, seams=seams)
    events, reasons = steps_in_question(run), list[SondeError]()
    for one in events or [open_case(run).step]:
        try:
            found = open_evidence(run, one, options=options, seams=seams)
            if found[0].is_replayed:
                found[0].lab.replay.batches(one)
        except SondeError as error:
            if not events and seams is None:
                raise  # every step of sonde's own trainer can be replayed, so something else is wrong
            reasons.append(error)
        else:
            return found
    told = f"none of the {len(events)} events of {run} can be made again" if events else f"{run} recorded no event"
    raise SettingError(
        f"{told}: there is nothing to diagnose",
        cause=reasons[0].message,
        hint="name a step whose batch and state were kept: `--step N`",
    )


def open_evidence(
    run: Path, step: int | None = None, *, options: ReplayOptions | None = None, seams: Seams | None = None
) -> tuple[Evidence, SondeError | None]:
    """Return the evidence about a step (by default the one that stands out most), and the error if changed data prevents a replay."""
    case = open_case(run, step)
    options = replace(options or ReplayOptions(), world_size=1)
    change = data_change(case.manifest, options.data) if seams is None else None
    try:
        return Evidence(
            case, Laboratory(case, Replay(run, options=options, seams=seams, settings_of=case.step)), change
        ), None
    except SondeError as error:
        if change is None:
            raise
        return Evidence(case, None, change), error


def conclude(evidence: Evidence) -> Verdict:
    """Ask every cause and rank the answers."""
    case, causes = evidence.case, tuple(_ranked(evidence))
    return Verdict(
        run_id=case.manifest.run_id,
        step=case.step,
        causes=causes,
        modules=_modules(evidence, causes[0]),
        experiments=tuple(evidence.lab.experiments) if evidence.is_replayed else (),
        replay=evidence.made.result if evidence.is_replayed else None,
        event=None if case.spike is None else asdict(case.spike.event),
        time=time.time(),
    )


def _ranked(evidence: Evidence) -> list[Cause]:
    """Return the causes with supporting evidence, by confidence."""
    if evidence.is_replayed:
        _ = evidence.made  # always the first experiment
        _note_state(evidence)
    found, left = list[Cause](), 1.0
    for name, rule in rules().items():
        if name in _LAST:
            left = 1 - max((one.confidence for one in found if one.cause not in _LAST), default=0.0)
        finding = rule.judge(evidence) if _has(evidence, rule.needs) else None
        if finding is not None:
            confidence = confidence_of(rule.family, finding.score) * left
            found.append(rule.cause(name, finding, confidence, evidence.case.step))
    kept = [one for one in found if one.confidence >= _LEAST]
    return sorted(kept or found, key=lambda one: -one.confidence)


def _has(evidence: Evidence, need: Need) -> bool:
    if need == "records" or not evidence.is_replayed:
        return need == "records"
    return need == "replay" or (evidence.corpus is not None and (need == "text" or evidence.has_sources))


def _note_state(evidence: Evidence) -> None:
    """Record statistics of gradients, weights and moments if the step is unusual."""
    case = evidence.case
    if not (case.is_event or case.is_loss_unusual):
        return
    note_state(evidence.lab)
    told = told_of_gradients(evidence)
    if told:
        done = f"step {case.step} and another batch, with every module watched"
        evidence.lab.note("where are the gradients large?", done, "; ".join(told))


def _modules(evidence: Evidence, first: Cause) -> tuple[ModuleStatistics, ...]:
    """Return the statistics of all tensors in the model, compared with a calm step if something is wrong."""
    if not evidence.is_replayed:
        return ()
    modules = evidence.made.modules
    if first.cause == NOTHING:
        return modules
    return tuple(replace(one, calm_norm=evidence.calm_modules.get((one.module, one.kind))) for one in modules)
