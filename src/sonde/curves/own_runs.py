"""A run directory of sonde as a curve with findings: the events that its recorder noticed, and the
verdicts about them. Reads only; needs no torch.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from sonde.curves.clues import Guess
from sonde.curves.judgement import (
    LOSS_KINDS,
    Finding,
    finding_of_event,
    judge,
)
from sonde.curves.loss_curves import LossCurve, evaluation_name, find_metric, restart_between
from sonde.curves.names import loss_names, norm_name, rate_name
from sonde.curves.phrases import brief
from sonde.data.skip_list import sample_name
from sonde.errors import SondeError
from sonde.forensics.verdict import NOTHING, UNKNOWN, Verdict, read_verdict
from sonde.records.columns import Floats, Integers
from sonde.records.layout import SPIKES, RunLayout
from sonde.records.manifest import Manifest, read_manifest
from sonde.report.curve import Curve
from sonde.report.run_curves import RunCurves
from sonde.report.wording import number
from sonde.spikes.detectors import Event
from sonde.spikes.spike_log import SpikeLog, read_spikes

VERDICT: Final = "verdict"
"""The kind of a finding about a step that has a verdict but no event."""
SAMPLES: Final = "samples"
"""The kind of a finding about single samples that stood out."""
IMPORTED: Final = "imported from "
"""How the manifest of an imported run begins its reason."""
_MAX_TEXT: Final = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStory:
    """What a run directory says about itself."""

    curve: LossCurve
    findings: tuple[Finding, ...]
    manifest: Manifest
    is_imported: bool
    """Whether another tool logged it."""
    was_recorded: bool
    """Whether a recorder wrote its events, so that their samples are known."""
    has_states: bool
    """Whether it has a folder of kept states or of checkpoints: without one, no step can be
    replayed. What is in the folder is not looked at.
    """
    verdicts: tuple[int, ...]
    """The steps that have a verdict."""
    problems: tuple[str, ...]
    """What could not be read."""


def read_run(run: Path, metric: str | None = None) -> RunStory | None:
    """Read a run directory; None if it has logged no loss. Raises RunNotFound if it is none."""
    manifest = read_manifest(run)
    layout = RunLayout(run)
    curves = RunCurves(run)
    curve = _curve_of(curves, metric)
    if curve is None:
        return None
    problems: list[str] = []
    log = SpikeLog(spikes=(), samples=(), datasets={}, num_bad=0)
    try:
        log = read_spikes(run)
    except SondeError as error:
        problems.append(str(error).replace("\n", "; "))
    verdicts = _verdicts(run, problems)
    has_events = bool(layout.record_files(SPIKES))
    is_imported = str(manifest.reason or "").startswith(IMPORTED)
    found = _recorded(curve, log) if has_events else judge(curve)
    steps = tuple(verdict.step for verdict in verdicts)
    return RunStory(
        curve=curve,
        findings=tuple(_with_verdicts(found, verdicts)),
        manifest=manifest,
        is_imported=is_imported,
        was_recorded=has_events and not is_imported,
        has_states=layout.kept_states.is_dir() or layout.checkpoints.is_dir(),
        verdicts=steps,
        problems=tuple(problems),
    )


def _curve_of(curves: RunCurves, metric: str | None) -> LossCurve | None:
    counts = dict.fromkeys(curves.names, 1)
    chosen = find_metric(counts, metric)
    loss = None if chosen is None else curves.read(chosen)
    if loss is None or not len(loss):
        return None
    alone = LossCurve(
        name=loss.name,
        steps=loss.steps,
        values=loss.values,
        rates=_beside(curves, rate_name(counts), loss.steps),
        norms=_beside(curves, norm_name(counts), loss.steps),
        epochs=_beside(curves, "epoch" if "epoch" in counts else None, loss.steps),
        times=_missing(len(loss)),
    )
    old = [_bare(stretch) for stretch in curves.superseded(loss.name) if len(stretch)]
    restarts = [
        restart_between(stretch.as_curve(), loss.steps, loss.values, int(stretch.steps[0]))
        for stretch in old
    ]
    evaluation = evaluation_name(loss.name, loss_names(counts))
    return replace(
        alone,
        restarts=tuple(restarts),
        replaced=tuple(old),
        evaluation=None if evaluation is None else curves.read(evaluation),
    )


def _bare(curve: Curve) -> LossCurve:
    """Return a loss with nothing beside it."""
    empty = _missing(len(curve))
    return LossCurve(
        name=curve.name,
        steps=curve.steps,
        values=curve.values,
        rates=empty,
        norms=empty,
        epochs=empty,
        times=empty,
    )


def _missing(count: int) -> Floats:
    return np.full(count, math.nan)


def _beside(curves: RunCurves, name: str | None, steps: Integers) -> Floats:
    if name is None:
        return _missing(len(steps))
    other = curves.read(name)
    known = dict(zip(other.steps.tolist(), other.values.tolist(), strict=True))
    return np.array([known.get(step, math.nan) for step in steps.tolist()])


def _recorded(curve: LossCurve, log: SpikeLog) -> list[Finding]:
    """Return the events that were noticed during training, and what the curve says beside them."""
    others = [finding for finding in judge(curve) if finding.kind not in LOSS_KINDS]
    noticed = []
    for spike in log.spikes:
        if spike.event.kind in LOSS_KINDS:
            finding = replace(
                finding_of_event(curve, spike.event), is_replaced=_is_replaced(curve, spike.event)
            )
            noticed.append(
                replace(finding, probably=(*finding.probably[:1], *_worst_row(spike.samples())))
            )
    found = [*others, *noticed, *_outlying(log)]
    return sorted(found, key=lambda finding: finding.first_step)


def _is_replaced(curve: LossCurve, event: Event) -> bool:
    """Return whether the step of an event was made again, with another loss."""
    at = curve.index(event.first_step)
    is_there = int(curve.steps[at]) == event.first_step and event.metric == "loss"
    return is_there and not math.isclose(float(curve.values[at]), event.value, rel_tol=1e-6)


def _outlying(log: SpikeLog) -> list[Finding]:
    """Return single samples that stood out from others of their length, as one finding."""
    if not log.samples:
        return []
    worst = max(log.samples, key=lambda sample: sample.z or 0.0)
    steps = [sample.step or 0 for sample in log.samples]
    name = sample_name(worst.dataset, worst.sample)
    count = len(log.samples)
    sentence = f"{name} at step {number(worst.step or 0)}, has a loss of {brief(worst.loss or 0.0)}"
    usual = f" where {brief(worst.expected)} is usual for its length" if worst.expected else ""
    who = "One sample stands" if count == 1 else f"{number(count)} single samples stand"
    guess = Guess(cause="batch", sentence="Their texts: `sonde spikes` shows them.")
    return [
        Finding(
            kind=SAMPLES,
            first_step=min(steps),
            last_step=max(steps),
            num_points=count,
            value=worst.loss,
            expected=worst.expected,
            z=worst.z,
            title=f"{who} out, though the mean need not show it. The worst, {sentence}{usual}.",
            probably=(guess,),
        )
    ]


def _worst_row(samples: object) -> tuple[Guess, ...]:
    """Return the row with the largest share of a step's loss as a guess."""
    if not isinstance(samples, list) or not samples or samples[0].loss is None:
        return ()
    worst = samples[0]
    name = sample_name(worst.dataset, worst.sample)
    share = f", {worst.share:.0%} of the step" if worst.share else ""
    return (
        Guess(
            cause="batch",
            sentence=f"Its worst row is {name}: loss {brief(worst.loss)}{share}.",
            names_sample=True,
        ),
    )


def _verdicts(run: Path, problems: list[str]) -> list[Verdict]:
    found = []
    for step, _ in RunLayout(run).verdicts():
        try:
            found.append(read_verdict(run, step))
        except SondeError as error:
            problems.append(str(error).replace("\n", "; "))
    return found


def _with_verdicts(findings: list[Finding], verdicts: list[Verdict]) -> list[Finding]:
    """Return the findings; those with a verdict tell it."""
    joined = list(findings)
    for verdict in verdicts:
        guesses = _guesses_of(verdict)
        places = [
            place
            for place, finding in enumerate(joined)
            if finding.kind in LOSS_KINDS
            and finding.first_step <= verdict.step <= finding.last_step
        ]
        for place in places:
            joined[place] = replace(joined[place], probably=guesses, has_verdict=True)
        if not places and verdict.causes[0].cause not in (NOTHING, UNKNOWN):
            joined.append(
                Finding(
                    kind=VERDICT,
                    first_step=verdict.step,
                    last_step=verdict.step,
                    title=f"Step {number(verdict.step)} was diagnosed.",
                    probably=guesses,
                    has_verdict=True,
                )
            )
    return sorted(joined, key=lambda finding: finding.first_step)


def _guesses_of(verdict: Verdict) -> tuple[Guess, ...]:
    guesses = []
    for cause in verdict.causes[:2]:
        sentence = cause.title.rstrip(".")
        row = cause.suspects[0] if cause.suspects else None
        text = "" if row is None else " ".join(row.text.split())[:_MAX_TEXT]
        named = "" if row is None else f" {sample_name(row.dataset, row.sample)}: {text!r}."
        guesses.append(
            Guess(cause=cause.cause, sentence=f"{sentence} ({cause.confidence:.0%}).{named}")
        )
    return tuple(guesses)
