"""What `sonde show` says about a run first: what it is, how far it got, how well it does, what
happened, and what to do next.

The facts are those of the report and of the dashboard (report/facts.py), in the same words. Nothing
is decoded, so it costs what the report's figures cost: 0.1 s for a small run, 2 s for a million
steps.
"""

import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from sonde.checkpoint.resume_report import EVENT as RESUME_REPORT
from sonde.checkpoint.resume_report import ResumeReport, read_reports
from sonde.cli.event_list import (
    about_event,
    show_cause,
    show_commands,
    steps_text,
    suspect_of,
    worst_event,
)
from sonde.cli.terminal import MAX_WIDTH, print_beside, print_indented
from sonde.dashboard.folder import ListedRun, OpenRun, RunFolder
from sonde.errors import SettingError, SondeError
from sonde.forensics.checks.check_report import report_of
from sonde.records.files import read_small
from sonde.records.layout import RunLayout
from sonde.records.manifest import Manifest
from sonde.records.replay_order import recorded_command
from sonde.records.values import decode, step_numbers
from sonde.report import wording
from sonde.report.facts import RunFacts, gather
from sonde.report.html.sections import BAD, GOOD
from sonde.report.marks import RESTART, Mark, worst_marks
from sonde.report.run_curves import LOSS, VALIDATION_LOSS
from sonde.spikes.spike_log import SpikeLog
from sonde.train.settings import is_built_in

_NUM_MARKS: Final = 12
_MAX_COMMAND: Final = 300
_MAX_COMMANDS: Final = 4
_LABEL: Final = 10
"""Width of the labels of the first lines."""
_LABEL_OF_REPORT: Final = 13
"""Width of the labels in a resume report (checkpoint/resume_report.py)."""
_TELLING: Final = (
    *("model", "model_name", "model_name_or_path", "arch", "model_dim", "encoder_layers"),
    *("decoder_layers", "optimizer", "lr", "learning_rate", "batch_size", "max_tokens", "seed"),
)
"""The settings that tell one run from another, by their usual names."""
_UNFINISHED: Final = ("failed", "killed", "stopped")


def show_story(console: Console, run: Path, *, everything: bool = False) -> None:
    """Print the answers that people want first. With `everything`, no event is left out."""
    console.width = min(console.width, MAX_WIDTH)
    row = RunFolder(run).row(run.name, run)
    log = OpenRun(run).spikes()
    facts = gather(run, spikes=log)
    _show_head(console, facts)
    _show_line(console, "how far", _how_far(row, facts))
    _show_line(console, "how well", _how_well(facts))
    marks = in_time_order(facts.marks)
    shown = marks if everything else worst_marks(marks, _NUM_MARKS)
    _show_marks(console, facts, [mark for mark in marks if mark in shown], read_reports(run))
    if len(shown) < len(marks):
        rest = len(marks) - len(shown)
        console.print(Text(f"  and {rest:,} more; --all lists them", style="dim"))
    _show_check(console, run)
    for problem in facts.problems:
        print_indented(console, Text(f"not read: {problem}", style="red"), 2)
    console.print(Text("\nWhat to do next", style="bold"))
    show_commands(console, what_next(run, facts, log)[:_MAX_COMMANDS])


def in_time_order(marks: Sequence[Mark]) -> list[Mark]:
    """Return marks as they happened: a run may go back. By step where a time is missing."""
    if any(math.isnan(mark.time) for mark in marks):
        return list(marks)
    return sorted(marks, key=lambda mark: mark.time)


def _show_head(console: Console, facts: RunFacts) -> None:
    """Print the name and status, then what the run is."""
    manifest = facts.manifest
    style = "yellow"
    if facts.status in GOOD:
        style = "green"
    if facts.status in BAD:
        style = "bold red"
    status = facts.status
    if manifest is not None and manifest.reason:
        status += f" ({manifest.reason})"
    headline = Text.assemble((facts.directory.name, "bold"), "  ", (status, style))
    print_indented(console, headline, 0)
    if manifest is not None:
        _show_line(console, "trained by", short_command(manifest.command))
        _show_line(console, "with", _telling_settings(manifest.settings))


def _show_line(console: Console, label: str, text: str) -> None:
    if text:
        print_beside(console, Text(f"  {label:<{_LABEL}}  ", style="bold"), Text(text))


def short_command(command: Sequence[Any]) -> str:
    """Return a command as people type it: without the path of the interpreter."""
    words = [str(word) for word in command]
    if not words:
        return ""
    words[0] = Path(words[0]).name
    if len(words) > 1 and words[0].startswith("python") and Path(words[1]).name == "sonde":
        words = ["sonde", *words[2:]]
    if words[1:3] == ["-m", "sonde"]:
        words = ["sonde", *words[3:]]
    return wording.shortened(shlex.join(words), _MAX_COMMAND)


def _telling_settings(settings: Any) -> str:
    known = dict(wording.setting_rows(settings)) if isinstance(settings, dict) else {}
    found = [(name, known[name]) for name in _TELLING if known.get(name, "null") != "null"]
    return ", ".join(f"{name} {wording.middle(text, 40)}" for name, text in found)


def _how_far(row: ListedRun, facts: RunFacts) -> str:
    step = row.step if facts.last_step is None else facts.last_step
    parts = ["no step was recorded"]
    if step is not None:
        of_planned = f"{step:,} of {row.planned or 0:,} steps"
        parts = [of_planned if row.planned else wording.counted(step, "step")]
    numbers = step_numbers(row.summary.last_step) or ()
    if len(numbers) > 1:
        parts.append(f"epoch {numbers[0]:,}")
    if not math.isnan(row.seconds_run):
        parts.append(wording.duration(row.seconds_run))
    if facts.manifest is not None and facts.manifest.num_starts > 1:
        parts.append(f"{facts.manifest.num_starts} starts")
    if not math.isnan(row.seconds_left):
        parts.append(f"{wording.duration(row.seconds_left)} left")
    if row.changed:
        parts.append(f"last write {wording.age(time.time() - row.changed)} ago")
    return ", ".join(parts)


def _how_well(facts: RunFacts) -> str:
    parts = []
    loss = facts.curves.get(LOSS)
    if loss is not None and len(loss):
        first = wording.number(float(loss.values[0]))
        last = wording.number(float(loss.values[-1]))
        parts.append(f"loss {first} → {last}")
    validation = facts.curves.get(VALIDATION_LOSS)
    if validation is not None and len(finite := validation.finite()):
        best = int(finite.values.argmin())
        value = wording.number(float(finite.values[best]))
        parts.append(f"best validation loss {value} at step {finite.steps[best]:,}")
    return "; ".join(parts) or "no loss was recorded"


def _show_marks(
    console: Console, facts: RunFacts, marks: Sequence[Mark], reports: Sequence[ResumeReport]
) -> None:
    console.print(Text("\nWhat happened", style="bold"))
    # The report of a restart is printed with the restart, in full.
    shown = [mark for mark in marks if mark.kind != RESUME_REPORT.replace("_", " ")]
    if not shown and not reports:
        console.print(Text("  no event was recorded"))
    steps = max((len(steps_text(mark)) for mark in shown), default=0)
    kinds = max((len(mark.kind) for mark in shown), default=0)
    waiting = list(reports)
    for mark in shown:
        style = "bold red" if mark.is_wrong else "cyan"
        label = Text.assemble(
            f"  {steps_text(mark):<{steps}}  ", (f"{mark.kind:<{kinds}}  ", style)
        )
        report = _report_of(mark, waiting)
        if report is not None:
            waiting.remove(report)
            _show_report(console, label, report)
        else:
            print_beside(console, label, Text(mark.title))
            show_cause(console, mark, suspect_of(mark, facts.verdicts))
    for report in waiting:
        _show_report(console, Text(f"  step {report.step:,}  {RESTART}  "), report)


def _report_of(mark: Mark, reports: Sequence[ResumeReport]) -> ResumeReport | None:
    if mark.kind != RESTART:
        return None
    return next((report for report in reports if report.from_step == mark.step), None)


def _show_report(console: Console, label: Text, report: ResumeReport) -> None:
    """Print what a restart restored, and what it did not."""
    first, *rest = report.lines()
    print_beside(console, label, Text(first, style="bold red" if report.lost else ""))
    for line in rest:
        name = line.strip()[:_LABEL_OF_REPORT]
        print_beside(console, Text(f"    {name}"), Text(line.strip()[_LABEL_OF_REPORT:]))


def _show_check(console: Console, run: Path) -> None:
    """Print what `sonde check` found about the script of the run, if it was checked."""
    path = RunLayout(run).check
    if not path.exists():
        return
    try:
        document: Any = decode(read_small(path))
        report = report_of(document)
    except (SondeError, OSError, KeyError, TypeError, ValueError) as error:
        print_indented(console, Text(f"not read: {path.name}: {error}", style="red"), 2)
        return
    count = wording.counted(len(report.results), "check")
    if not report.wrong:
        console.print(Text(f"  {count} of the script: nothing is wrong", style="green"))
        return
    for result in report.wrong:
        print_indented(console, Text.assemble(("wrong: ", "bold red"), result.title), 2)
        print_indented(console, Text(result.text), 4)


def what_next(run: Path, facts: RunFacts, log: SpikeLog) -> list[tuple[str, str]]:
    """Return the commands to run next with what each is for, the most useful first."""
    place = shlex.quote(str(run))
    found: list[tuple[str, str]] = []
    if facts.status in _UNFINISHED and facts.manifest is not None:
        found += _how_to_resume(place, facts.manifest)
    event = worst_event(facts.marks)
    if event is not None:
        found += about_event(run, facts.manifest, event, log)
    elif RunLayout(run).ledger_ranks():
        found.append(("see which samples stand out over the whole run", f"sonde worst {place}"))
    found.append(("see its curve", f"sonde plot {place}"))
    found.append(("see everything in a browser", f"sonde dashboard {place}"))
    return found


def _how_to_resume(place: str, manifest: Manifest) -> list[tuple[str, str]]:
    if is_built_in(manifest):
        return [("resume it", f"sonde train --run {place}")]
    try:
        words, directory = recorded_command(manifest)
    except SettingError:
        return []
    return [(f"run it again, in {directory}", shlex.join(words))]
