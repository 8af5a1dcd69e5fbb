"""`sonde rollback RUN --step N`: plan how to get past a spike; `--apply` carries the plan out."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.moved import Moved
from sonde.cli.script import Script, command_of, diagnosed_by_script
from sonde.cli.terminal import picked, print_rows, tell
from sonde.forensics.rollback import RollbackPlan, apply_rollback, plan_rollback
from sonde.records.manifest import checkpoints_at


def rollback(
    run: Path,
    /,
    *command: str,
    step: int,
    script: Annotated[Script | None, Parameter(name="*")] = None,
    worst: int | None = None,
    moved: Moved | None = None,
    apply: bool = False,
    json: bool = False,
) -> None:
    """Show which checkpoint to return to, which samples to skip, and the command that continues training from there.

    For a run trained by your own script, give its command: `sonde rollback RUN --step N -- python train.py …`. The step is diagnosed first.

    Parameters
    ----------
    run
        The run directory.
    command
        The command that runs your training script, after `--`.
    step
        A step of a recorded spike, or a step that `sonde diagnose` has a verdict for.
    worst
        Skip this many samples with the largest share of the step's loss (default: the samples that the verdict blames,
        or all samples of the step if there is no verdict).
    apply
        Write the skip list and move later checkpoints aside. Nothing is deleted.
    json
        Print one JSON document instead of text.
    """
    if command or (script is not None and script.again):
        started = command_of(run, command, script)
        assert started is not None
        diagnosed_by_script(run, step, started)
    moved = moved or Moved()
    with checkpoints_at(moved.checkpoints):
        plan = plan_rollback(run, step, worst=worst, data=moved.data)
        aside = apply_rollback(plan) if apply else None
    skip = {name: plan.skip.samples(name).tolist() for name in plan.skip.datasets}
    told = picked(plan, "step", "first_step", "checkpoint", "set_aside", "reason", "notes", "command")
    places = {"run": str(plan.run), "skip_list": str(plan.skip_list), "set_aside_in": aside and str(aside)}
    document = {**told, **places, "skip": skip, "applied": apply}
    tell(document, lambda console: _show(console, plan, aside, applied=apply), json=json)


def _show(console: Console, plan: RollbackPlan, aside: Path | str | None, *, applied: bool) -> None:
    origin = f"the checkpoint after {plan.checkpoint} updates" if plan.checkpoint else "the beginning"
    samples = "; ".join(f"{name} {' '.join(map(str, plan.skip.samples(name).tolist()))}" for name in plan.skip.datasets)
    later = ", ".join(map(str, plan.set_aside)) or "none"
    rows = {
        "go back to": f"{origin} (the trouble begins with step {plan.first_step})",
        "later checkpoints": f"{later}{f' → {aside}' if aside else ''}",
        "skip": f"{len(plan.skip)} samples: {samples[:500]}",
        "because": plan.reason,
        "skip list": str(plan.skip_list),
    }
    print_rows(console, ("", ""), rows.items())
    for note in plan.notes:
        console.print(Text(note, style="yellow"))
    console.print("done; train on with" if applied else "nothing was changed; --apply does it, then train on with")
    console.print(Text(f"  {plan.command_line}", style="bold"))
