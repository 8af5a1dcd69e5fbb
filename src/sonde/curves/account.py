"""Whatever a user names, read and judged: what `sonde why` tells.

    read_accounts(paths, metric)      an account of every run, told together

An account has the curve, what happened in it, what the log cannot tell, and what to do next.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from sonde.curves.judgement import LOSS_KINDS, Finding, events_of_loss, judge
from sonde.curves.loss_curves import LossCurve, loss_curve
from sonde.curves.names import is_evaluation
from sonde.curves.own_runs import SAMPLES, RunStory, read_run
from sonde.curves.points import Point, Source
from sonde.curves.recognise import find_run_directories, find_sources
from sonde.curves.together import Group, find_recurring, groups_of
from sonde.errors import SettingError, SondeError
from sonde.report.wording import number
from sonde.train.settings import is_built_in

OWN: Final = "a run of sonde"
_MAX_NAMED: Final = 12
_MAX_OTHERS: Final = 4
_MAX_TOGETHER: Final = 200
"""More runs than this are told one by one: comparing every pair takes too long."""
_RECORD: Final = "Record the next run: then a step can be replayed, and its rows named."
_COMPARE: Final = "Is it the data? Add a second run over the same data: what jumps in both, is."
_LOOP: Final = """run = sonde.Run("runs/mine")                       # docs/any-loop.md
recorder = sonde.Recorder(run, model, optimizer)"""
_CALLBACK: Final = """from sonde.integrations.{} import SondeCallback
trainer = Trainer(..., callbacks=[SondeCallback("runs/mine")])"""


class NextStep(NamedTuple):
    """What to do, and the command for it."""

    words: str
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """One run, read and judged."""

    path: Path
    name: str
    """The name of the run within the file; empty if the file holds one run."""
    format: str
    """What wrote it."""
    curve: LossCurve
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...] = ()
    """What this log cannot tell, and why."""
    next_steps: tuple[NextStep, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be read."""

    @property
    def title(self) -> str:
        """The run in a few words."""
        return f"{self.path.name} · {self.name}" if self.name else str(self.path)

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The findings that say that something went wrong."""
        return tuple(finding for finding in self.findings if finding.is_alarm)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounts:
    """Everything that was read."""

    runs: tuple[Account, ...]
    groups: tuple[Group, ...]
    """The runs that share an order of data; empty if there is one run."""
    unread: tuple[str, ...] = ()
    """Runs without a loss, and what they have instead."""


def read_accounts(paths: Sequence[Path], metric: str | None = None) -> Accounts:
    """Read and judge every run at or below the paths. Raises SettingError if none has a loss."""
    runs: list[Account] = []
    unread: list[str] = []
    for path in paths:
        own = find_run_directories(path)
        for directory in own:
            _add_run(directory, metric, runs, unread)
        if not own:
            for source in find_sources(path):
                _add_source(source, metric, runs, unread)
    if not runs:
        named = ", ".join(map(str, paths))
        raise SettingError(
            f"there is no loss in {named}",
            cause="; ".join(unread[:3]) or "nothing in it is a log that can be read",
            hint="--metric NAME judges another number; docs/why.md lists the formats",
        )
    if len(runs) < 2 or len(runs) > _MAX_TOGETHER:
        return Accounts(runs=tuple(runs), groups=(), unread=tuple(unread))
    curves = [run.curve for run in runs]
    groups = groups_of(curves)
    recurring = find_recurring(curves, [run.findings for run in runs], groups)
    together = [
        replace(run, findings=tuple(found), next_steps=_without_comparison(run.next_steps))
        for run, found in zip(runs, recurring, strict=True)
    ]
    return Accounts(runs=tuple(together), groups=tuple(groups), unread=tuple(unread))


def _without_comparison(steps: Sequence[NextStep]) -> tuple[NextStep, ...]:
    """Return the next steps for a run that was told together with others already."""
    return tuple(step for step in steps if step.words != _COMPARE)


def _add_run(directory: Path, metric: str | None, runs: list[Account], unread: list[str]) -> None:
    try:
        story = read_run(directory, metric)
    except (SondeError, OSError) as error:
        unread.append(str(error).replace("\n", "; "))
        return
    if story is None:
        unread.append(f"{directory} has logged no loss")
        return
    runs.append(
        Account(
            path=directory,
            name="",
            format="a run imported into sonde" if story.is_imported else OWN,
            curve=story.curve,
            findings=story.findings,
            unknown=() if story.was_recorded else _unknown(story.curve, story.findings),
            next_steps=_next_of_run(directory, story),
            problems=story.problems,
        )
    )


def _add_source(source: Source, metric: str | None, runs: list[Account], unread: list[str]) -> None:
    points = list(source.points)
    try:
        curve = loss_curve(points, metric)
    except SettingError as error:
        unread.append(f"{source.path}: {error.message}; {error.hint}")
        return
    if curve is None:
        names = dict.fromkeys(name for point in points for name in point.values)
        if names:
            unread.append(f"{source.path} has {', '.join(list(names)[:_MAX_NAMED])}")
        unread.extend(f"{source.path}: {damage}" for damage in source.damage)
        return
    findings = tuple(judge(curve))
    runs.append(
        Account(
            path=source.path,
            name=source.name,
            format=source.format,
            curve=curve,
            findings=findings,
            unknown=_unknown(curve, findings),
            next_steps=(
                *_next_of_log(source, findings),
                *_next_of_other_losses(source, points, curve, findings),
            ),
            problems=tuple(source.damage),
        )
    )


def _unknown(curve: LossCurve, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return what a log without a recorder cannot tell about its events."""
    events = [finding for finding in findings if finding.kind in LOSS_KINDS]
    if not events:
        return ()
    unknown = ["which rows were in the batch, and their texts: only a recorder knows them"]
    if curve.spacing > 1:
        unknown.append(
            f"which of the {number(curve.spacing)} steps between two points it was: the log has no"
            " more"
        )
    if not curve.has_norms:
        unknown.append(
            "whether the gradient jumped before the loss did: no gradient norm is logged"
        )
    if not curve.has_rates:
        unknown.append("whether the learning rate moved: it is not logged")
    return tuple(unknown)


def _next_of_log(source: Source, findings: Sequence[Finding]) -> tuple[NextStep, ...]:
    """Return what to do about a log that no recorder watched."""
    events = [finding for finding in findings if finding.is_alarm]
    if not events:
        return ()
    named = shlex.quote(str(source.path))
    steps = [NextStep(_RECORD, _watch(source))]
    if any(guess.cause == "batch" for finding in events for guess in finding.probably):
        steps.append(NextStep(_COMPARE, f"sonde why {named} OTHER"))
    if not source.name:
        out = shlex.quote(f"runs/{source.path.name.partition('.')[0]}")
        steps.append(
            NextStep(
                "Keep it as a run, to see it beside others in `sonde dashboard runs`.",
                f"sonde import-log {named} --out {out}",
            )
        )
    return tuple(steps)


def _next_of_other_losses(
    source: Source, points: Sequence[Point], curve: LossCurve, findings: Sequence[Finding]
) -> list[NextStep]:
    """Return the other training losses that have an event which this one does not have: a log may
    hold the parts of a loss without their sum.
    """
    told = [finding for finding in findings if finding.is_alarm]
    training = [name for name in curve.others if not is_evaluation(name)]
    steps = []
    for name in training[:_MAX_OTHERS]:
        other = loss_curve(points, name)
        events = events_of_loss(other) if other is not None else []
        own = [event for event in events if not _is_within(event, told)]
        if own:
            steps.append(
                NextStep(
                    f"Look at {name} too: it has an event of its own at step"
                    f" {number(own[0].first_step)}.",
                    f"sonde why {shlex.quote(str(source.path))} --metric {shlex.quote(name)}",
                )
            )
    return steps


def _is_within(event: Finding, told: Sequence[Finding]) -> bool:
    return any(other.first_step <= event.first_step <= other.last_step for other in told)


def _watch(source: Source) -> str:
    if "Hugging Face" in source.format:
        return _CALLBACK.format("huggingface")
    if "Lightning" in source.format:
        return _CALLBACK.format("lightning")
    return _LOOP


def _next_of_run(directory: Path, story: RunStory) -> tuple[NextStep, ...]:
    """Return what to do about a run directory."""
    found = [finding for finding in story.findings if finding.kind in LOSS_KINDS]
    # What was made again is history: what stands needs somebody first.
    events = [finding for finding in found if not finding.is_replaced] or found
    named = shlex.quote(str(directory))
    if events and not story.was_recorded:
        return (NextStep(_RECORD, _LOOP),)
    if events:
        worst = max(events, key=lambda finding: (finding.has_verdict, finding.rise))
        return _next_of_event(worst, named, story)
    if any(finding.kind == SAMPLES for finding in story.findings):
        return (NextStep("See these rows and their texts.", f"sonde spikes {named}"),)
    return ()


def _next_of_event(event: Finding, named: str, story: RunStory) -> tuple[NextStep, ...]:
    """Return what to do about an event that a recorder saw."""
    step = event.first_step
    rows = NextStep(f"See the rows of step {number(step)}.", f"sonde spikes {named} --step {step}")
    if event.is_replaced:
        return (rows,)
    if event.has_verdict:
        return (rows, NextStep("Go back to before it.", f"sonde rollback {named} --step {step}"))
    if not story.has_states:
        return (rows,)
    script = "" if is_built_in(story.manifest) else " --again"
    words = "Find the cause by experiment: the step is replayed with one thing changed at a time."
    return (rows, NextStep(words, f"sonde diagnose {named} --step {step}{script}"))
