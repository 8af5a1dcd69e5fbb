"""`sonde diagnose RUN`: find by experiment what went wrong at a step. Prints the verdict and saves
it in the run.

`sonde rollback RUN --step N`: plan how to get past it; `--apply` carries the plan out.
"""

import dataclasses
import shlex
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from sonde.cli.flags import Moved, Script, command_of
from sonde.cli.terminal import needs, picked, print_indented, print_rows, tell
from sonde.forensics.case import steps_in_question, steps_that_stand_out
from sonde.forensics.rollback import RollbackPlan, apply_rollback, plan_rollback
from sonde.forensics.verdict import (
    Cause,
    Verdict,
    is_about_another,
    read_verdict,
    read_verdict_history,
    write_verdict,
)
from sonde.records.layout import RunLayout
from sonde.records.manifest import checkpoints_at
from sonde.records.replay_order import ReplayOptions, ReplayOrder, launch
from sonde.report import wording

_NUM_CAUSES: Final = 4
_NUM_SUSPECTS: Final = 3
_NUM_STEPS: Final = 3
_SURE: Final = 0.8
_LIKELY: Final = 0.5


def diagnose(
    run: Path,
    /,
    *command: str,
    step: int | None = None,
    script: Script = Script(),
    moved: Moved = Moved(),
    recipe: str | None = None,
    trust_recipe: bool = False,
    json: bool = False,
) -> None:
    """Find the cause of a loss spike by experiment.

    Replays the step, changes one thing at a time, and ranks the possible causes. For a run trained
    by your own script, give its command: `sonde diagnose RUN -- python train.py …`. See `sonde
    replay`.

    Parameters
    ----------
    run
        The run directory.
    command
        The command that runs your training script, after `--`.
    step
        The step to diagnose (default: the newest recorded event that can be replayed).
    recipe
        MODULE:FUNCTION that rebuilds a run trained by your own script. It is imported and called.
    trust_recipe
        Import and call the recipe named in the run's manifest.
    json
        Print one JSON document instead of text.
    """
    if step is None and not steps_in_question(run):
        _tell_no_event(run, json=json)
        return
    options = ReplayOptions(data=moved.data, recipe=recipe, trust_recipe=trust_recipe)
    started = command_of(run, command, script, options, step)
    if started is not None:
        verdict = _diagnosed_by_script(run, step, started)
    else:
        needs("sonde diagnose", "torch")
        from sonde.forensics.diagnose import diagnose as find

        with checkpoints_at(moved.checkpoints):
            verdict = find(run, step, options=options)
        write_verdict(run, verdict)
    path = RunLayout(run).verdict(verdict.step)
    holds = read_verdict(run, verdict.step)
    document = {**dataclasses.asdict(holds), "newest": dataclasses.asdict(verdict)}
    tell(document, lambda console: _show(console, holds, verdict, path), json=json)


def _tell_no_event(run: Path, *, json: bool) -> None:
    """Say that nothing was recorded to diagnose, and which steps one may ask for."""
    far = steps_that_stand_out(run, _NUM_STEPS)
    undone = [verdict for verdict in read_verdict_history(run) if verdict.names_a_cause]
    document = {
        "events": [],
        "stand_out": [{"step": number, "deviations": z} for number, z in far],
        "superseded": [dataclasses.asdict(verdict) for verdict in undone],
    }

    def show(console: Console) -> None:
        console.print("no event was recorded in the run as it stands, so there is nothing to say")
        for verdict in undone[:_NUM_STEPS]:
            first = verdict.causes[0]
            console.print(
                Text(
                    f"  step {verdict.step}, since undone: {first.title} {first.confidence:.0%}"
                    f" (`sonde diagnose {run} --step {verdict.step}`)"
                )
            )
        if far:
            steps = ", ".join(f"{number} ({z:+.1f} deviations)" for number, z in far)
            console.print(Text(f"losses farthest above those before them: step {steps}"))
            console.print(
                Text(f"to look at one all the same: sonde diagnose {run} --step {far[0][0]}")
            )
        console.print("a mistake that is there from the first step makes no event:")
        console.print("  `sonde check -- python train.py` looks for those")

    tell(document, show, json=json)


def _diagnosed_by_script(
    run: Path, step: int | None, started: tuple[list[str], Path | None]
) -> Verdict:
    """Run the user's script for a diagnosis and return the verdict, which the script writes into
    the run.
    """
    order = ReplayOrder(run=str(run.absolute()), verb="diagnose", step=step)
    return msgspec.convert(launch(order, *started)["verdict"], Verdict)


def _show(console: Console, verdict: Verdict, newest: Verdict, path: Path) -> None:
    """Show the verdict that holds, and the newest one where that is another."""
    first = verdict.causes[0]
    console.print(Text(f"step {verdict.step} of {verdict.run_id}", style="bold"))
    if verdict != newest:
        again = newest.causes[0]
        undone = "a verdict from before stays: it is stronger"
        if is_about_another(verdict, newest):
            undone = "this is the verdict on the step as it was before it was undone"
        console.print(Text(undone, style="dim"))
        asked = f"asked again, of the step as it stands: {again.title} {again.confidence:.0%}"
        console.print(Text(asked, style="dim"))
    console.print(Text(first.title, style=_style(first.confidence)))
    for number, cause in enumerate(verdict.causes[:_NUM_CAUSES], 1):
        _show_cause(console, number, cause)
    console.print(Text("\nwhat was tried", style="bold"))
    for experiment in verdict.experiments:
        console.print(Text.assemble((f"  {experiment.question} ", "cyan"), experiment.done))
        print_indented(console, Text(experiment.found), 4)
    if first.advice:
        console.print(Text("\nwhat to do", style="bold"))
        for advice in first.advice:
            print_indented(console, Text(advice.replace(" RUN", f" {path.parent.parent}")), 2)
    console.print(
        Text(f"\n{wording.duration(verdict.seconds)}; the verdict is in {path}", style="dim")
    )


def _show_cause(console: Console, number: int, cause: Cause) -> None:
    where = [
        f"{name} {value}"
        for name, value in (("module", cause.module), ("setting", cause.setting))
        if value
    ]
    where += [f"rank {cause.rank}"] if cause.rank is not None else []
    kind = (cause.cause.replace("_", " "), _style(cause.confidence))
    place = (f"  {', '.join(where)}" if where else "", "cyan")
    console.print(Text.assemble(f"\n{number}. ", kind, f"  {cause.confidence:.0%}", place))
    for sentence in cause.evidence:
        print_indented(console, Text(sentence), 3)
    for suspect in cause.suspects[:_NUM_SUSPECTS] if number == 1 else ():
        loss = [] if suspect.loss is None else [f"loss {suspect.loss:.3g}"]
        print_indented(
            console, Text(", ".join([*wording.origin(suspect, suspect), *loss]), "yellow"), 3
        )
        if suspect.text:
            print_indented(console, Text(wording.visible(" ".join(suspect.text.split()))[:200]), 6)


def _style(confidence: float) -> str:
    return "bold red" if confidence >= _SURE else "yellow" if confidence >= _LIKELY else "dim"


def rollback(
    run: Path,
    /,
    *command: str,
    step: int,
    script: Script = Script(),
    worst: int | None = None,
    moved: Moved = Moved(),
    apply: bool = False,
    json: bool = False,
) -> None:
    """Go back to before a spike and skip what caused it.

    Shows which checkpoint to return to, which samples to skip, and the command that resumes from
    there. Nothing is changed without `--apply`. For a run trained by your own script, give its
    command: `sonde rollback RUN --step N -- python train.py …`. The step is diagnosed first.

    Parameters
    ----------
    run
        The run directory.
    command
        The command that runs your training script, after `--`.
    step
        A step of a recorded spike, or a step that `sonde diagnose` has a verdict for.
    worst
        Skip this many samples with the largest share of the step's loss (default: the samples that
            the verdict blames with a confidence of at least 70 %).
    apply
        Write the skip list and move later checkpoints aside. Nothing is deleted.
    json
        Print one JSON document instead of text.
    """
    if command or script.again:
        started = command_of(run, command, script, ReplayOptions(), step)
        assert started is not None
        _diagnosed_by_script(run, step, started)
    with checkpoints_at(moved.checkpoints):
        plan = plan_rollback(run, step, worst=worst, data=moved.data)
        aside = apply_rollback(plan) if apply else None
    skip = {name: plan.skip.samples(name).tolist() for name in plan.skip.entries}
    plan_fields = picked(
        plan, "step", "first_step", "checkpoint", "set_aside", "reason", "notes", "command"
    )
    places = {
        "run": str(plan.run),
        "skip_list": str(plan.skip_list),
        "set_aside_in": aside and str(aside),
    }
    document = {**plan_fields, **places, "skip": skip, "applied": apply}
    tell(document, lambda console: _show_plan(console, plan, aside, applied=apply), json=json)


def _show_plan(
    console: Console, plan: RollbackPlan, aside: Path | str | None, *, applied: bool
) -> None:
    origin = f"the checkpoint after {plan.checkpoint} steps" if plan.checkpoint else "the beginning"
    samples = "; ".join(
        f"{name} {' '.join(map(str, plan.skip.samples(name).tolist()))}"
        for name in plan.skip.entries
    )
    later = ", ".join(map(str, plan.set_aside)) or "none"
    rows = {
        "go back to": f"{origin} (the trouble begins with step {plan.first_step})",
        "later checkpoints": f"{later}{f' → {aside}' if aside else ''}",
        "skip": f"{wording.counted(len(plan.skip), 'sample')}: {samples[:500]}",
        "because": plan.reason,
        "skip list": str(plan.skip_list),
    }
    print_rows(console, ("", ""), rows.items())
    for note in plan.notes:
        console.print(Text(note, style="yellow"))
    console.print(
        "done; train on with"
        if applied
        else "nothing was changed; --apply does it, then train on with"
    )
    console.print(Text(f"  {shlex.join(plan.command)}", style="bold"))
