"""From a spike to its cause: real experiments by replay, what they say, and a ranked verdict.

    verdict = diagnose(Path("runs/a"))              # the first recorded event, or the step that stands out most
    verdict.causes[0].cause                          # "garbled_text"

In this order: does it happen again, to the bit? Is what the run was fed what it began with? Did a setting jump? Is it the batch or the state: other
batches here, this batch at earlier weights? Then which samples, or which tensor. A step that is like those around it gets the verdict that nothing
is wrong; where the evidence names nothing, the verdict says so. Confidence follows the experiment that could have said otherwise and did not.

Cost: the updates since the last checkpoint again, and about thirty forward passes. Nothing is written to the run; `write_verdict` does that.
"""

import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from sonde.errors import SondeError
from sonde.forensics.case import Case, open_case
from sonde.forensics.cause_texts import make_cause
from sonde.forensics.changes import DataChange, data_change, start_changes
from sonde.forensics.judge_data import judge_calm_samples, judge_samples, judge_texts
from sonde.forensics.judge_state import (
    is_state_bad,
    judge_change,
    judge_machine,
    judge_order,
    judge_overflow,
    judge_rate,
    judge_size,
    judge_stored,
    judge_tensors,
)
from sonde.forensics.laboratory import Laboratory, Reproduction
from sonde.forensics.replay import Replay, ReplayOptions
from sonde.forensics.seams import Seams
from sonde.forensics.verdict import (
    CHANGED_CODE,
    CHANGED_SETTINGS,
    LEARNING_RATE,
    NOTHING,
    UNKNOWN,
    Cause,
    Experiment,
    ModuleStatistics,
    Verdict,
)

_CLEAR: Final = 0.5
"""A cause this sure leaves no room for "not known"."""


def diagnose(
    run: Path, step: int | None = None, *, options: ReplayOptions | None = None, seams: Seams | None = None
) -> Verdict:
    """What was wrong with a step; without one, with the first recorded event.

    `options` say how the run is built again; `seams` bring its states, its batches and its updates, where it was not trained by sonde.
    """
    started = time.monotonic()
    run = Path(run)
    case = open_case(run, step)
    options = replace(options or ReplayOptions(), world_size=1)
    change = data_change(case.manifest, options.data)
    try:
        lab = Laboratory(case, Replay(run, options=options, seams=seams))
    except SondeError as error:
        if change is None:
            raise
        return _from_records(case, change, error, started)
    made = lab.reproduce()
    causes = _judge(lab, made, change)
    ranked = _ranked(case, causes)
    modules = made.modules
    if ranked[0].cause != NOTHING:
        modules = _beside(modules, lab.calm_modules())
    return Verdict(
        run_id=case.manifest.run_id,
        step=case.step,
        causes=ranked,
        experiments=tuple(lab.experiments),
        modules=modules,
        replay=made.result,
        event=None if case.spike is None else asdict(case.spike.event),
        time=time.time(),
        seconds=time.monotonic() - started,
    )


def _judge(lab: Laboratory, made: Reproduction, change: DataChange | None) -> list[Cause]:
    """Everything that may be to blame, each with its confidence."""
    case = lab.case
    is_unusual = case.is_loss_unusual
    causes = [judge_change(change, made, is_unusual, case.step)] if change is not None else []
    causes += judge_order(lab)
    if made.is_off and not causes:
        return judge_machine(lab, made)
    causes += judge_rate(lab)
    if not is_unusual and not case.is_skipped:
        return [*causes, *judge_stored(lab), *judge_calm_samples(lab, lab.compare_states()), *judge_texts(lab)]
    causes += judge_overflow(lab, made)
    if any(one.confidence >= 0.9 for one in causes):
        return causes
    state = lab.compare_states()
    if is_state_bad(lab, state):
        causes += judge_tensors(lab, state)
        causes += _drifted(lab, causes)
    else:
        causes += judge_samples(lab, state) or judge_texts(lab)
        causes += judge_size(lab)
    return causes


def _drifted(lab: Laboratory, causes: list[Cause]) -> list[Cause]:
    """The state is bad and nothing says why: what changed at the last start, and a rate that may be too high."""
    if any(one.confidence >= _CLEAR for one in causes):
        return []
    case, found = lab.case, []
    for change in start_changes(case.run, case.manifest.settings):
        if case.step - 100 <= change.step < case.step:
            told = [f"after update {change.step}: {one}" for one in change.what]
            if change.settings:
                sure = 0.6 if case.step - change.step <= 16 else 0.4
                found.append(make_cause(CHANGED_SETTINGS, sure, told, step=case.step, setting=change.settings[0]))
            else:
                found.append(make_cause(CHANGED_CODE, 0.3, told, step=case.step))
    rates = [lab.replay.seams.updater.scheduled_rate(step) or 0.0 for step in range(1, case.step * 2)]
    warmup = rates.index(max(rates)) if rates else 0
    near_peak = warmup > 1 and 0.7 * warmup <= case.step <= 2 * warmup
    told = ["other batches lose more too, and no tensor stands out: the training itself went astray"]
    if near_peak:
        told.append(f"the warm-up ends after update {warmup}: the rate is at its highest around here")
    title = "The learning rate may be too high."
    found.append(make_cause(LEARNING_RATE, 0.4 if near_peak else 0.25, told, step=case.step, title=title, setting="lr"))
    return found


def _ranked(case: Case, causes: list[Cause]) -> tuple[Cause, ...]:
    """In order of confidence, with "nothing" or "not known" in its place among them."""
    best = max((one.confidence for one in causes), default=0.0)
    if case.is_loss_unusual or case.is_skipped:
        told = [] if math.isnan(case.loss_z) else [f"the loss is {case.loss_z:.1f} deviations above that of calm steps"]
        rest = make_cause(UNKNOWN, max(0.05, 0.45 * (1 - best)), told, step=case.step)
    else:
        told = [] if math.isnan(case.loss_z) else [f"the loss is {case.loss_z:+.1f} deviations from that of calm steps"]
        rest = make_cause(NOTHING, max(0.03, 0.95 * (1 - best)), told, step=case.step)
    return tuple(sorted([*causes, rest], key=lambda one: -one.confidence))


def _from_records(case: Case, change: DataChange, error: SondeError, started: float) -> Verdict:
    """What can be said when the step cannot be made again, and the data is not what it was."""
    causes = [judge_change(change, None, case.is_loss_unusual, case.step)]
    tried = Experiment(
        question="does it happen again?", done="the run was to be built again", found=f"it cannot be: {error}"
    )
    return Verdict(
        run_id=case.manifest.run_id,
        step=case.step,
        causes=_ranked(case, causes),
        experiments=(tried,),
        event=None if case.spike is None else asdict(case.spike.event),
        time=time.time(),
        seconds=time.monotonic() - started,
    )


def _beside(modules: tuple[ModuleStatistics, ...], calm: tuple[ModuleStatistics, ...]) -> tuple[ModuleStatistics, ...]:
    """Each tensor with its norm in a calm step."""
    norms = {(one.module, one.kind): one.norm for one in calm}
    return tuple(replace(one, calm_norm=norms.get((one.module, one.kind))) for one in modules)
