"""`sonde why PATH`: read anything with a loss in it, and say what happened, what it probably is,
what cannot be known, and what to do next.
"""

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.show import draw
from sonde.cli.terminal import print_indented, print_rows, tell
from sonde.curves.account import Account, Accounts, read_accounts
from sonde.curves.judgement import LOSS_KINDS, RESTART, Finding
from sonde.curves.own_runs import SAMPLES
from sonde.curves.phrases import points
from sonde.curves.together import Group
from sonde.errors import SettingError
from sonde.report.curve import Curve
from sonde.report.wording import number

FORMAT: Final = "sonde-why"
VERSION: Final = 1
_MAX_WIDTH: Final = 96
_HEIGHT: Final = 8
_NUM_SHOWN: Final = 8
_NUM_NAMED: Final = 3
_NUM_IN_FULL: Final = 3
"""Up to this many runs are told in full; more become a table."""
_NUM_ROWS: Final = 40
_NUM_STEPS: Final = 15
_WORDS: Final = {"nonfinite": "not finite", "gradient_not_finite": "gradient not finite"}
_STYLES: Final = {"restart": "cyan", "pause": "cyan", "verdict": "cyan", "samples": "yellow"}
_HARMLESS: Final = frozenset({"restart", "pause"})
"""Kinds of findings beside which a run may still be called calm."""


def why(
    *paths: Annotated[Path, Parameter(negative=())],
    metric: str | None = None,
    check: bool = False,
    json: bool = False,
) -> int:
    """Read any log and say what went wrong in its loss curve.

    Says what happened, what it probably is, what cannot be known, and what to do next. Reads a run,
    or what another tool wrote: `trainer_state.json`, TensorBoard event files, wandb files,
    Lightning's `metrics.csv`, DLLogger and MLLOG lines, the printed logs of Megatron, NeMo, nanoGPT
    and others, any CSV or JSON lines. Several runs are judged together: what recurs at the same
    step under other weights was caused by the data.

    Parameters
    ----------
    paths
        Runs, logs, or folders of them.
    metric
        The number to judge (default: the training loss).
    check
        Exit with 1 if anything went wrong in a curve.
    json
        Print one JSON document instead of text.
    """
    if not paths:
        raise SettingError("no log was given", hint="sonde why trainer_state.json")
    accounts = read_accounts(paths, metric)
    tell(_document(accounts), lambda console: _show(console, accounts), json=json)
    return int(check and any(run.alarms for run in accounts.runs))


def _show(console: Console, accounts: Accounts) -> None:
    width = (
        console.width if sys.stdout.isatty() else shutil.get_terminal_size((_MAX_WIDTH, 24)).columns
    )
    console.width = min(max(width, 40), _MAX_WIDTH)
    if len(accounts.runs) <= _NUM_IN_FULL:
        for place, run in enumerate(accounts.runs):
            if place:
                console.print()
            _show_run(console, run)
        _show_rest(console, accounts.runs)
    else:
        _show_runs(console, accounts)
    for sentence in accounts.unread[:_NUM_SHOWN]:
        console.print(Text(f"no loss: {sentence}", style="dim"))


def _show_run(console: Console, run: Account) -> None:
    curve = run.curve
    headline = Text.assemble((f"{run.title}: ", "bold"), _summary(run.findings))
    console.print(headline, soft_wrap=True)
    every = "step" if curve.spacing == 1 else f"{number(curve.spacing)} steps"
    facts = [run.format, f"{points(len(curve))} of {curve.name}, one every {every}"]
    print_indented(console, Text(" · ".join(facts), style="dim"), 0)
    shown = _worst_findings(run.findings)
    _draw_curve(console, run, shown)
    for finding in shown:
        _show_finding(console, finding)
    if len(shown) < len(run.findings):
        rest = len(run.findings) - len(shown)
        console.print(Text(f"\nand {number(rest)} more of less weight; --json has all", "dim"))
    for problem in run.problems:
        console.print(Text(f"not read: {problem}", style="red"))


def _summary(findings: Sequence[Finding]) -> Text:
    """Return what happened in a few words, the worst first."""
    found = [finding for finding in findings if finding.kind not in _HARMLESS]
    if not found:
        return Text("nothing stands out: no spike, no jump, no divergence", "green")
    ranked = sorted(found, key=lambda finding: (not finding.is_alarm, -finding.rise))
    named = [
        f"{_kind(finding)} at step {number(finding.first_step)}" for finding in ranked[:_NUM_NAMED]
    ]
    if len(ranked) > _NUM_NAMED:
        named.append(f"and {number(len(ranked) - _NUM_NAMED)} more")
    return Text(", ".join(named), "bold red" if ranked[0].is_alarm else "yellow")


def _kind(finding: Finding) -> str:
    return _WORDS.get(finding.kind, finding.kind.replace("_", " "))


def _show_rest(console: Console, runs: Sequence[Account]) -> None:
    """Show what the logs cannot tell and what to do next, each sentence once."""
    unknown = dict.fromkeys(sentence for run in runs for sentence in run.unknown)
    if unknown:
        what = "This log" if len(runs) == 1 else "These logs"
        console.print(Text(f"\n{what} cannot tell", style="bold"))
        for sentence in unknown:
            print_indented(console, Text(f"· {sentence}"), 2)
    steps = {step.words: step for run in runs for step in run.next_steps}
    if steps:
        console.print(Text("\nNext", style="bold"))
        for step in steps.values():
            print_indented(console, Text(step.words), 2)
            for line in step.command.splitlines():
                console.print(Text(f"    {line}", style="cyan"), soft_wrap=True)


def _draw_curve(console: Console, run: Account, shown: Sequence[Finding]) -> None:
    """Draw the curve, with the alarms that are told below it marked."""
    curve = run.curve.as_curve()
    if not len(curve.finite()):
        console.print(Text(f"\nNone of its {number(len(curve))} losses is a number.", "red"))
        return
    alarms = [finding for finding in shown if finding.is_alarm and not finding.is_replaced]
    marks = [finding.first_step for finding in alarms]
    cut = _cut(curve)
    console.print()
    console.print(draw(cut, marks, width=console.width, height=_HEIGHT), soft_wrap=True)
    if cut is not curve:
        highest = number(float(np.max(curve.finite().values)))
        limit = number(float(cut.finite().values.max()))
        console.print(Text(f"drawn up to {limit}; the highest is {highest}", "dim"))


def _cut(curve: Curve) -> Curve:
    """Return the curve with its highest peaks cut off, if they would press the rest flat."""
    values = curve.finite().values
    low, high = np.quantile(values, (0.005, 0.98))
    with np.errstate(over="ignore"):
        limit = float(high + 3 * (high - low))
    if not limit > float(high) or float(values.max()) <= 1.5 * limit:
        return curve
    return Curve(name=curve.name, steps=curve.steps, values=np.minimum(curve.values, limit))


def _worst_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of most weight, in order of steps."""
    ranked = sorted(
        findings,
        key=lambda finding: (not finding.is_alarm, -finding.rise, -finding.num_points),
    )
    kept = {id(finding) for finding in ranked[:_NUM_SHOWN]}
    return [finding for finding in findings if id(finding) in kept]


def _show_finding(console: Console, finding: Finding) -> None:
    style = _STYLES.get(finding.kind, "bold red")
    replaced = " (undone: the run went back)" if finding.is_replaced else ""
    console.print()
    console.print(
        Text.assemble(
            (f"step {number(finding.first_step)}  ", "bold"), (_kind(finding), style), replaced
        )
    )
    print_indented(console, Text(finding.title), 2)
    for place, guess in enumerate(finding.probably):
        label = (_label(finding, place), "yellow")
        print_indented(console, Text.assemble(label, guess.sentence), 2)


def _label(finding: Finding, place: int) -> str:
    if finding.kind in (RESTART, SAMPLES):
        return ""
    if place:
        return "or: "
    return "verdict: " if finding.has_verdict else "probably: "


def _show_runs(console: Console, accounts: Accounts) -> None:
    runs = accounts.runs
    num_points = sum(len(run.curve) for run in runs)
    console.print(Text(f"{number(len(runs))} runs, {number(num_points)} points", style="bold"))
    for group in accounts.groups:
        if len(group.members) > 1:
            _show_group(console, accounts, group)
    copies = {place for group in accounts.groups for place in group.copies}
    rows = []
    for place, run in enumerate(runs):
        events = [finding for finding in run.alarms if not finding.is_replaced]
        of_data = [finding for finding in events if (finding.num_runs or 0) > 1]
        events_text = "a copy" if place in copies else _steps_text(events)
        last = float(run.curve.values[-1])
        rows.append(
            (
                _short(run.title),
                number(len(run.curve)),
                number(last),
                len(events),
                len(of_data),
                events_text,
            )
        )
    rows.sort(key=lambda row: -int(row[3]))
    console.print()
    columns = ("run", ">points", ">last", ">events", ">shared", "at step")
    print_rows(console, columns, rows[:_NUM_ROWS])
    if len(rows) > _NUM_ROWS:
        console.print(Text(f"and {number(len(rows) - _NUM_ROWS)} more; --json has all", "dim"))


def _show_group(console: Console, accounts: Accounts, group: Group) -> None:
    copies = f" ({len(group.copies)} more are copies)" if group.copies else ""
    sentence = f"{number(len(group.members))} runs saw the same data in the same order{copies}."
    console.print()
    print_indented(console, Text(sentence), 0)
    found: dict[int, Finding] = {}
    for place in group.members:
        for finding in accounts.runs[place].findings:
            if (finding.num_runs or 0) > 1:
                found.setdefault(finding.first_step, finding)
    for step, finding in sorted(found.items())[:_NUM_STEPS]:
        sentence = f"step {number(step)}: in {finding.num_runs} of {finding.of_runs} runs"
        print_indented(console, Text(f"· {sentence}: the data's"), 2)
    if len(found) > _NUM_STEPS:
        print_indented(console, Text(f"· and {len(found) - _NUM_STEPS} more steps"), 2)
    if not found:
        print_indented(console, Text("· no event recurs"), 2)


def _steps_text(events: Sequence[Finding]) -> str:
    steps = [number(finding.first_step) for finding in events[:4]]
    return " ".join(steps) + (" …" if len(events) > 4 else "")


def _short(title: str) -> str:
    return title if len(title) <= 32 else f"…{title[-31:]}"


def _document(accounts: Accounts) -> dict[str, Any]:
    """Return everything as plain data (docs/formats/why.md)."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "runs": [_run_document(run) for run in accounts.runs],
        "groups": [dataclasses.asdict(group) for group in accounts.groups],
        "unread": list(accounts.unread),
    }


def _run_document(run: Account) -> dict[str, Any]:
    curve = run.curve
    finite = curve.as_curve().finite().values
    numbers = {
        "num_points": len(curve),
        "num_nonfinite": len(curve) - len(finite),
        "first_step": int(curve.steps[0]),
        "last_step": int(curve.steps[-1]),
        "spacing": curve.spacing,
        "first": float(curve.values[0]),
        "last": float(curve.values[-1]),
        "lowest": float(finite.min()) if len(finite) else None,
    }
    return {
        "path": str(run.path),
        "name": run.name,
        "format": run.format,
        "metric": curve.name,
        **numbers,
        "num_events": sum(finding.kind in LOSS_KINDS for finding in run.findings),
        "num_alarms": len(run.alarms),
        "findings": [
            {**dataclasses.asdict(finding), "is_alarm": finding.is_alarm}
            for finding in run.findings
        ],
        "unknown": list(run.unknown),
        "next": [step._asdict() for step in run.next_steps],
        "problems": list(run.problems),
    }
