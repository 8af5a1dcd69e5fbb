"""`sonde diagnose RUN`: find by experiment what went wrong at a step. Prints the verdict and saves it in the run."""

import dataclasses
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.moved import Moved
from sonde.cli.script import Script, command_of, diagnosed_by_script
from sonde.cli.terminal import needs, print_indented, tell
from sonde.forensics.verdict import Cause, Verdict, write_verdict
from sonde.records.layout import RunLayout
from sonde.records.manifest import checkpoints_at
from sonde.records.replay_order import ReplayOptions
from sonde.report import wording

_NUM_CAUSES: Final = 4
_NUM_SUSPECTS: Final = 3
_SURE: Final = 0.8
_LIKELY: Final = 0.5


def diagnose(
    run: Path,
    /,
    *command: str,
    step: int | None = None,
    script: Annotated[Script | None, Parameter(name="*")] = None,
    moved: Moved | None = None,
    recipe: str | None = None,
    trust_recipe: bool = False,
    json: bool = False,
) -> None:
    """Find the cause of a loss spike: replay the step, change one thing at a time, and rank the possible causes.

    For a run trained by your own script, give its command: `sonde diagnose RUN -- python train.py …`. See `sonde replay`.

    Parameters
    ----------
    run
        The run directory.
    command
        The command that runs your training script, after `--`.
    step
        The update to diagnose (default: the newest recorded spike that can be replayed, or else the step whose loss stands out most).
    recipe
        MODULE:FUNCTION that rebuilds a run trained by your own script. It is imported and called.
    trust_recipe
        Import and call the recipe named in the run's manifest.
    json
        Print one JSON document instead of text.
    """
    started = command_of(run, command, script, recipe=recipe, trust_recipe=trust_recipe)
    if started is not None:
        verdict = diagnosed_by_script(run, step, started)
    else:
        needs("sonde diagnose", "torch")
        from sonde.forensics.diagnose import diagnose as find

        moved = moved or Moved()
        with checkpoints_at(moved.checkpoints):
            verdict = find(run, step, options=ReplayOptions(data=moved.data, recipe=recipe, trust_recipe=trust_recipe))
        write_verdict(run, verdict)
    path = RunLayout(run).verdict(verdict.step)
    tell(dataclasses.asdict(verdict), lambda console: _show(console, verdict, path), json=json)


def _show(console: Console, verdict: Verdict, path: Path) -> None:
    first = verdict.causes[0]
    console.print(Text(f"step {verdict.step} of {verdict.run_id}", style="bold"))
    console.print(Text(first.title, style=_style(first.confidence)))
    for number, cause in enumerate(verdict.causes[:_NUM_CAUSES], 1):
        _show_cause(console, number, cause)
    console.print(Text("\nwhat was tried", style="bold"))
    for one in verdict.experiments:
        console.print(Text.assemble((f"  {one.question} ", "cyan"), one.done))
        print_indented(console, one.found, 4)
    if first.advice:
        console.print(Text("\nwhat to do", style="bold"))
        for advice in first.advice:
            print_indented(console, advice.replace(" RUN", f" {path.parent.parent}"), 2)
    console.print(Text(f"\n{wording.duration(verdict.seconds)}; the verdict is in {path}", style="dim"))


def _show_cause(console: Console, number: int, cause: Cause) -> None:
    where = [f"{name} {value}" for name, value in (("module", cause.module), ("setting", cause.setting)) if value]
    where += [f"rank {cause.rank}"] if cause.rank is not None else []
    kind = (cause.cause.replace("_", " "), _style(cause.confidence))
    place = (f"  {', '.join(where)}" if where else "", "cyan")
    console.print(Text.assemble(f"\n{number}. ", kind, f"  {cause.confidence:.0%}", place))
    for sentence in cause.evidence:
        print_indented(console, sentence, 3)
    for suspect in cause.suspects[:_NUM_SUSPECTS] if number == 1 else ():
        loss = [] if suspect.loss is None else [f"loss {suspect.loss:.3g}"]
        print_indented(console, ", ".join([*wording.origin(suspect, suspect), *loss]), 3, "yellow")
        if suspect.text:
            print_indented(console, wording.visible(" ".join(suspect.text.split()))[:200], 6)


def _style(confidence: float) -> str:
    return "bold red" if confidence >= _SURE else "yellow" if confidence >= _LIKELY else "dim"
