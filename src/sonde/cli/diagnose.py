"""`sonde diagnose RUN`: find by experiment what went wrong at a step. Prints the verdict and saves
it in the run.

`sonde rollback RUN --step N`: plan how to get past it; `--apply` carries the plan out.
"""

import dataclasses
import shlex
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from sonde.cli.flags import Moved, Script, command_of
from sonde.cli.terminal import (
    MAX_WIDTH,
    needs,
    picked,
    print_beside,
    print_first_words,
    print_indented,
    tell,
)
from sonde.data.skip_list import sample_name
from sonde.forensics.case import steps_in_question, steps_that_stand_out
from sonde.forensics.rollback import RollbackPlan, apply_rollback, plan_rollback
from sonde.forensics.verdict import (
    Cause,
    Suspect,
    Verdict,
    is_about_another,
    read_verdict,
    read_verdict_history,
    write_verdict,
)
from sonde.records.layout import RunLayout
from sonde.records.replay_order import ReplayOptions, ReplayOrder, launch
from sonde.report import wording
from sonde.report.marks import superseded
from sonde.spikes.spike_log import read_spikes

_NUM_CAUSES: Final = 4
_NUM_SUSPECTS: Final = 3
_NUM_STEPS: Final = 3
_LABEL: Final = 17
"""Width of the labels of a plan."""
_RED_FROM: Final = 0.8
_YELLOW_FROM: Final = 0.5
"""From these confidences on, a cause is drawn in this colour."""


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
    in_question = [step] if step is not None else steps_in_question(run)
    if not in_question:
        _tell_no_event(run, json=json)
        return
    options = ReplayOptions(
        data=moved.data,
        checkpoints=moved.checkpoints,
        recipe=recipe,
        trust_recipe=trust_recipe,
    )
    started = command_of(run, command, script, options, in_question[0])
    if started is not None:
        verdict = _diagnosed_by_script(run, step, started)
    else:
        needs("sonde diagnose", "torch")
        from sonde.forensics.diagnose import diagnose as find

        verdict = find(run, step, options=options)
        write_verdict(run, verdict)
    path = RunLayout(run).verdict(verdict.step)
    holds = read_verdict(run, verdict.step)
    document = {**dataclasses.asdict(holds), "newest": dataclasses.asdict(verdict)}
    tell(document, lambda console: _show(console, holds, verdict, path), json=json)


def _tell_no_event(run: Path, *, json: bool) -> None:
    """Say that nothing was recorded to diagnose, and which steps one may ask for."""
    far = [(number, z) for number, z in steps_that_stand_out(run, _NUM_STEPS) if z > 0]
    undone = [verdict for verdict in read_verdict_history(run) if verdict.names_a_cause]
    document = {
        "events": [],
        "stand_out": [{"step": number, "deviations": z} for number, z in far],
        "superseded": [dataclasses.asdict(verdict) for verdict in undone],
    }

    def show(console: Console) -> None:
        console.width = min(console.width, MAX_WIDTH)
        console.print(
            "no event was recorded in the run as it is now, so there is nothing to diagnose"
        )
        place = shlex.quote(str(run))
        flags = " --again" if RunLayout(run).kept_states.is_dir() else ""
        for verdict in undone[:_NUM_STEPS]:
            first = verdict.causes[0]
            sentence = (
                f"step {verdict.step:,}, since undone: {first.title} ({first.confidence:.0%})"
            )
            print_indented(console, Text(sentence), 2)
            command = f"sonde diagnose {place} --step {verdict.step}{flags}"
            console.print(Text(f"    {command}", style="cyan"), soft_wrap=True)
        if far:
            steps = ", ".join(f"{number:,} ({z:+.1f} deviations)" for number, z in far)
            print_indented(
                console, Text(f"losses farthest above those before them: step {steps}"), 0
            )
            print_indented(
                console,
                Text(
                    "to look at one all the same:"
                    f" `sonde diagnose {place} --step {far[0][0]}{flags}`"
                ),
                0,
            )
        print_indented(
            console,
            Text(
                "a mistake that is there from the first step makes no event; to look for those:"
                " `sonde check -- python train.py`"
            ),
            0,
        )

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
    """Show the verdict that holds, and the newest one where that is another. The answer comes
    first, then its evidence and what to do, then everything else.
    """
    console.width = min(console.width, MAX_WIDTH)
    run = path.parent.parent
    first, *others = verdict.causes[:_NUM_CAUSES]
    headline = f"{first.title} ({first.confidence:.0%})"
    print_indented(console, Text(headline, style=_style(first.confidence)), 0)
    about = f"{first.cause.replace('_', ' ')}, step {verdict.step:,} of {verdict.run_id}"
    console.print(Text(about, style="dim"), soft_wrap=True)
    if verdict != newest:
        _show_newest(console, verdict, newest)
    console.print()
    _show_evidence(console, first, indent=2)
    for suspect in first.suspects[:_NUM_SUSPECTS]:
        _show_suspect(console, suspect)
    _show_advice(console, verdict, run)
    if others:
        console.print(Text("\nLess likely", style="bold"))
    for cause in others:
        print_indented(console, Text(_kind(cause), style=_style(cause.confidence)), 2)
        _show_evidence(console, cause, indent=4)
    console.print(Text("\nWhat was tried", style="bold"))
    for experiment in verdict.experiments:
        question = Text.assemble((f"{experiment.question} ", "cyan"), experiment.done)
        print_indented(console, question, 2)
        print_indented(console, Text(experiment.found), 4)
    took = f"{wording.duration(verdict.seconds)}; the verdict is in {path}"
    console.print(Text(f"\n{took}", style="dim"), soft_wrap=True)


def _show_newest(console: Console, verdict: Verdict, newest: Verdict) -> None:
    """Say why an earlier verdict holds, and what was found just now."""
    again = newest.causes[0]
    why = "this earlier verdict holds, because it is surer than the new one"
    if is_about_another(verdict, newest):
        why = "this verdict is about the step as it was before the rollback"
    print_indented(console, Text(why, style="dim"), 0)
    asked = f"the new verdict: {again.title} ({again.confidence:.0%})"
    print_indented(console, Text(asked, style="dim"), 0)


def _kind(cause: Cause) -> str:
    """Return the name of a cause with its confidence and what it points at."""
    where = [f"{name} {value}" for name, value in _points_at(cause) if value]
    kind = f"{cause.cause.replace('_', ' ')} ({cause.confidence:.0%})"
    return ", ".join([kind, *where])


def _points_at(cause: Cause) -> list[tuple[str, str | None]]:
    rank = None if cause.rank is None else str(cause.rank)
    return [("module", cause.module), ("setting", cause.setting), ("rank", rank)]


def _show_evidence(console: Console, cause: Cause, *, indent: int) -> None:
    for name, value in _points_at(cause):
        if value and indent == 2:
            print_indented(console, Text(f"{name} {value}", style="cyan"), indent)
    for sentence in cause.evidence:
        print_indented(console, Text(f"· {sentence}"), indent)


def _show_suspect(console: Console, suspect: Suspect) -> None:
    facts = wording.origin(suspect, suspect)
    if suspect.loss is not None:
        facts.append(f"loss {suspect.loss:.3g}")
    print_indented(console, Text(", ".join(facts), style="yellow"), 2)
    if suspect.text:
        print_first_words(console, wording.visible(suspect.text), 4)


def _show_advice(console: Console, verdict: Verdict, run: Path) -> None:
    """Show what to do; nothing if the run went back to before the step already."""
    undone = superseded(run, verdict.step, verdict.time)
    if not undone and not verdict.causes[0].advice:
        return
    console.print(Text("\nWhat to do", style="bold"))
    if undone:
        print_indented(console, Text(f"Nothing: {undone.partition(': ')[2]}."), 2)
        return
    place = shlex.quote(str(run))
    for advice in verdict.causes[0].advice:
        print_indented(console, Text(advice.replace(" RUN", f" {place}")), 2)


def _style(confidence: float) -> str:
    if confidence >= _RED_FROM:
        return "bold red"
    if confidence >= _YELLOW_FROM:
        return "yellow"
    return "dim"


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
    undone = _undone(run, step)
    plan = plan_rollback(run, step, worst=worst, data=moved.data, checkpoints=moved.checkpoints)
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
    show = partial(_show_plan, plan=plan, aside=aside, applied=apply, undone=undone)
    tell(document, show, json=json)


def _show_plan(
    console: Console,
    *,
    plan: RollbackPlan,
    aside: Path | str | None,
    applied: bool,
    undone: str,
) -> None:
    origin = f"the checkpoint after {plan.checkpoint} steps" if plan.checkpoint else "the beginning"
    samples = ", ".join(
        sample_name(name, number)
        for name in plan.skip.entries
        for number in plan.skip.samples(name).tolist()
    )
    later = ", ".join(map(str, plan.set_aside)) or "none"
    rows = {
        "go back to": f"{origin} (the trouble begins at step {plan.first_step})",
        "later checkpoints": f"{later}{f' → {aside}' if aside else ''}",
        "skip": f"{wording.counted(len(plan.skip), 'sample')}: {samples[:500]}"
        if samples
        else "none",
        "because": plan.reason,
        "skip list": str(plan.skip_list),
    }
    console.width = min(console.width, MAX_WIDTH)
    if undone:
        told = f"step {plan.step:,} was undone already: {undone.partition(': ')[2]}"
        print_indented(console, Text(told, style="yellow"), 0)
    for label, text in rows.items():
        print_beside(console, Text(f"{label:<{_LABEL}}  ", style="bold"), Text(text))
    for note in plan.notes:
        print_indented(console, Text(note, style="yellow"), 0)
    done = (
        "done; resume with" if applied else "nothing was changed; --apply does it, then resume with"
    )
    console.print(done)
    console.print(Text(f"  {shlex.join(plan.command)}", style="bold"), soft_wrap=True)


def _undone(run: Path, step: int) -> str:
    """Say that the run went back to before a step already; "" if it did not."""
    log = read_spikes(run)
    times = [spike.time for spike in log.spikes if spike.holds(step)]
    times += [sample.time or 0.0 for sample in log.samples_at(step)]
    return superseded(run, step, max(times)) if times else ""
