"""The events of a run for people, as `sonde spikes` lists them: what happened, the sample behind it
with its file and line, the cause if it is known, and the next command.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import MAX_WIDTH, print_beside, print_first_words, print_indented
from sonde.dashboard.folder import OpenRun
from sonde.dashboard.replaying import how_to_replay, next_commands
from sonde.errors import SondeError
from sonde.forensics.verdict import Verdict
from sonde.records.manifest import Manifest, read_manifest
from sonde.records.reader import damage_text
from sonde.report import wording
from sonde.report.marks import SUPERSEDED, Mark, worst_marks
from sonde.spikes.decoding import DecodedSample
from sonde.spikes.spike_log import SpikeLog

_SAMPLES: Final = 3
"""Of an event, at most this many samples are shown."""


def show_events(
    console: Console,
    run: Path,
    log: SpikeLog,
    samples: Mapping[int, Sequence[DecodedSample]],
    max_events: int | None,
) -> None:
    """Print the events of a run, each with its worst samples, given by the event's first step. Of
    more than `max_events`, those farthest above what was expected.
    """
    console.width = min(console.width, MAX_WIDTH)
    marks = [mark for mark in OpenRun(run).marks() if mark.is_wrong and mark.metric]
    shown = marks if max_events is None else worst_marks(marks, max_events)
    if not marks:
        console.print(Text(f"no spikes in {run}"), soft_wrap=True)
    problems: set[str] = set()
    for place, mark in enumerate(shown):
        if place:
            console.print()
        _show_event(console, mark, samples.get(mark.step, ()), problems)
    if problems:
        console.print()
    for problem in sorted(problems):
        print_indented(console, Text(f"no text: {problem}", style="dim"), 0)
    if len(shown) < len(marks):
        rest = len(marks) - len(shown)
        console.print(Text(f"\nand {rest:,} more of less weight; --all lists them", style="dim"))
    if log.num_bad:
        console.print(damage_text(log.num_bad), style="red")
    event = worst_event(marks)
    commands = [] if event is None else about_event(run, _manifest(run), event, log)
    if commands:
        console.print(Text("\nWhat to do next", style="bold"))
        show_commands(console, commands)


def event_at(run: Path, step: int) -> Mark | None:
    """Return the event that a step belongs to; None if it belongs to none."""
    wrong = [mark for mark in OpenRun(run).marks() if mark.is_wrong and mark.metric]
    return next((mark for mark in wrong if mark.step <= step <= mark.last), None)


def show_what_next(console: Console, run: Path, event: Mark | None, log: SpikeLog) -> None:
    """Print what to do about an event whose samples were just shown."""
    if event is None:
        return
    shown = f"see the samples of step {event.step:,}"
    commands = about_event(run, _manifest(run), event, log)
    commands = [(what, command) for what, command in commands if what != shown]
    if commands:
        console.print(Text("\nWhat to do next", style="bold"))
        show_commands(console, commands)


def _manifest(run: Path) -> Manifest | None:
    try:
        return read_manifest(run)
    except SondeError:
        return None


def _show_event(
    console: Console, mark: Mark, samples: Sequence[DecodedSample], problems: set[str]
) -> None:
    """Print an event. Why a sample has no text goes to `problems`: it is the same for many."""
    label = Text.assemble((f"{steps_text(mark)}  ", "bold"), (f"{mark.kind}  ", "bold red"))
    far = "" if math.isnan(mark.z) else f" ({mark.z:+.1f} deviations)"
    print_beside(console, label, Text(f"{mark.title}{far}"))
    told = set()
    for sample in samples[:_SAMPLES]:
        where = ", ".join(wording.origin(sample.ranked, sample))
        if where in told:  # the worst of the step, and one that stands out by itself
            continue
        told.add(where)
        print_indented(console, Text(where, style="yellow"), 2)
        if sample.text:
            print_first_words(console, sample.text, 2)
        elif sample.problem:
            problems.add(sample.problem)
    show_cause(console, mark, indent=2)


def steps_text(mark: Mark) -> str:
    """Return the step of a mark, or its first and last."""
    if mark.last > mark.step:
        return f"step {mark.step:,} to {mark.last:,}"
    return f"step {mark.step:,}"


def show_cause(console: Console, mark: Mark, suspect: str = "", *, indent: int = 4) -> None:
    """Print the cause of an event, the sample to blame and the remarks, as far as there are any."""
    if mark.cause:
        sure = "" if math.isnan(mark.confidence) else f" ({wording.percent(mark.confidence)})"
        print_indented(console, Text.assemble(("cause: ", "bold"), f"{mark.cause}{sure}"), indent)
    if suspect:
        print_indented(console, Text(suspect, style="yellow"), indent)
    if mark.note:
        print_indented(console, Text(mark.note, style="dim"), indent)


def suspect_of(mark: Mark, verdicts: Sequence[Verdict]) -> str:
    """Return where the first sample is from that the verdict on a mark blames; "" if none."""
    if not mark.is_wrong:
        return ""
    for verdict in verdicts:
        if mark.step <= verdict.step <= mark.last and verdict.causes:
            for suspect in verdict.causes[0].suspects[:1]:
                return ", ".join(wording.origin(suspect, suspect))
    return ""


def worst_event(marks: Sequence[Mark]) -> Mark | None:
    """Return the event that went farthest wrong and still stands; one that a rollback has undone
    only if there is no other.
    """
    wrong = [mark for mark in marks if mark.is_wrong and mark.metric]
    standing = [mark for mark in wrong if SUPERSEDED not in mark.note]
    found = worst_marks(standing or wrong, 1)
    return found[0] if found else None


def about_event(
    run: Path, manifest: Manifest | None, event: Mark, log: SpikeLog
) -> list[tuple[str, str]]:
    """Return the commands about an event: find its cause, or act on it; then look at it."""
    found = []
    if SUPERSEDED not in event.note:
        replaying = how_to_replay(run, manifest, event.step)
        has_verdict = bool(event.cause)
        commands = next_commands(
            run, event.step, replaying, has_verdict=has_verdict, has_samples=False
        )
        # With a verdict, the last one acts on it. Without, the first one finds the cause.
        found += commands[-1:] if has_verdict else commands[:1]
    if _has_samples(log, event.step):
        command = f"sonde spikes {shlex.quote(str(run))} --step {event.step}"
        found.append((f"see the samples of step {event.step:,}", command))
    return found


def _has_samples(log: SpikeLog, step: int) -> bool:
    """Return whether the samples of the event that began at this step were recorded."""
    began = [spike for spike in log.spikes if spike.event.first_step == step]
    return any(spike.samples() for spike in began) or bool(log.samples_at(step))


def show_commands(console: Console, commands: Sequence[tuple[str, str]]) -> None:
    """Print commands, each below what it is for. They are not wrapped, so that they can be
    copied.
    """
    for what, command in commands:
        console.print(Text(f"  {what}", style="dim"))
        console.print(Text(f"    {command}", style="cyan"), soft_wrap=True)
