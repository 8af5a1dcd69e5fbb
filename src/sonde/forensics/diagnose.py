"""Diagnose a spike: run experiments by replay, let each cause judge them, and return a ranked
verdict.

    verdict = diagnose(Path("runs/a"))              # the newest event that can be replayed
    verdict.causes[0].cause                          # "garbled_text"

Each cause (causes/) is asked for what speaks for it (judge.py), and `Evidence` runs the experiments
they need, each once. If the step is like those around it, the verdict says
that nothing is wrong; if the evidence points to no cause, the verdict says so.

Cost: the updates since the last checkpoint again, and some dozens of forward passes. Nothing is
written to the run; use `write_verdict` for that.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from sonde.errors import SettingError, SondeError
from sonde.forensics.case import open_case, steps_in_question
from sonde.forensics.changes import data_change
from sonde.forensics.evidence import Evidence, describe_gradients
from sonde.forensics.judge import judge_replay
from sonde.forensics.laboratory import Laboratory
from sonde.forensics.replay import Replay
from sonde.forensics.seams import Seams
from sonde.forensics.tensor_test import note_state
from sonde.forensics.verdict import NOTHING, Cause, Experiment, Verdict
from sonde.records.replay_order import ReplayOptions


def diagnose(
    run: str | Path,
    step: int | None = None,
    *,
    options: ReplayOptions | None = None,
    seams: Seams | None = None,
) -> Verdict:
    """Diagnose what was wrong with a step; by default, with the newest recorded event that can be
    replayed.

    For a run of sonde's trainer. In a loop of your own, `sonde diagnose RUN -- python train.py`
    does it.

    ```text
    verdict = sonde.diagnose("runs/m30k", step=1207)
    print(verdict.causes[0].title, verdict.causes[0].confidence)
    ```

    Args:
        run: The directory of the run.
        step: The step to look at; the first update is 1.
        options: How the run is rebuilt.
        seams: Where states, batches and updates come from, for a run of another trainer.
    """
    started = time.monotonic()
    run = Path(run)
    opened = partial(open_evidence, run, options=options, seams=seams)
    verdict = conclude(_newest(run, opened) if step is None else opened(step))
    return replace(verdict, seconds=time.monotonic() - started)


def _newest(run: Path, opened: Callable[[int], Evidence]) -> Evidence:
    """Return the evidence about the newest event that can be replayed."""
    events = steps_in_question(run)
    if not events:
        raise SettingError(
            f"{run} recorded no event, so there is nothing to diagnose",
            hint="name a step to look at it all the same: `--step N`",
        )
    reasons = list[SondeError]()
    for step in events:
        try:
            found = opened(step)
            if found.is_replayed:
                found.lab.replay.batches(step)
        except SondeError as error:
            reasons.append(error)
        else:
            return found
    raise SettingError(
        f"none of the {len(events)} events of {run} can be replayed",
        cause=reasons[0].message,
        hint="name a step whose batch and state were kept: `--step N`",
    )


def open_evidence(
    run: Path, step: int, *, options: ReplayOptions | None = None, seams: Seams | None = None
) -> Evidence:
    """Return the evidence about a step: from records alone if changed data prevents a replay."""
    case = open_case(run, step)
    options = replace(options or ReplayOptions(), world_size=1)
    change = data_change(case.manifest, options.data) if seams is None else None
    try:
        replay = Replay(run, options=options, seams=seams, settings_of=step)
        return Evidence(case, Laboratory(case, replay), change)
    except SondeError as error:
        if change is None:
            raise
        return Evidence(case, error, change)


def conclude(evidence: Evidence) -> Verdict:
    """Ask every cause and rank the answers."""
    case = evidence.case
    verdict = Verdict(
        run_id=case.manifest.run_id,
        step=case.step,
        causes=tuple(_asked(evidence)),
        event=None if case.spike is None else asdict(case.spike.event),
        time=time.time(),
        place="replay",
        loss=case.record.loss,
    )
    if not evidence.is_replayed:
        done = "the run was to be built again"
        found = f"it cannot be: {evidence.problem}"
        return replace(
            verdict,
            experiments=(Experiment(question="does it happen again?", done=done, found=found),),
        )
    modules = evidence.made.modules
    if verdict.causes[0].cause != NOTHING:
        calm = evidence.modules_of_another_batch
        modules = tuple(
            replace(module, calm_norm=calm.get((module.module, module.kind))) for module in modules
        )
    experiments = tuple(evidence.lab.experiments)
    return replace(verdict, experiments=experiments, replay=evidence.made.result, modules=modules)


def _asked(evidence: Evidence) -> list[Cause]:
    """Ask every cause, after the experiments that every verdict shows."""
    case = evidence.case
    if evidence.is_replayed:
        _ = evidence.made  # always the first experiment
    if evidence.is_replayed and (case.is_event or case.is_loss_unusual):
        note_state(evidence.lab)
        sentences = describe_gradients(evidence)
        if sentences:
            done = f"step {case.step} and another batch, with every module watched"
            evidence.lab.note("where are the gradients large?", done, "; ".join(sentences))
    return judge_replay(evidence)
