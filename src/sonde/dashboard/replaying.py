"""The commands to run next about a step of a run, as they work on this machine.

A run of `sonde train` is replayed as it is. A run of somebody's own script needs the script:
`--again` runs the command that the run recorded. A run that kept no states before the step cannot
replay it, and a page says so instead of offering a command that fails.
"""

import shlex
from pathlib import Path
from typing import Final, NamedTuple

from sonde.checkpoint.folder import CheckpointFolder
from sonde.errors import SettingError, SondeError
from sonde.forensics.verdict import read_verdict
from sonde.records.layout import RunLayout
from sonde.records.manifest import Manifest
from sonde.records.replay_order import recorded_command
from sonde.train.settings import is_built_in

AGAIN: Final = "--again"
YES: Final = "--yes"


class Replaying(NamedTuple):
    """How a step of a run is replayed."""

    flags: tuple[str, ...] = ()
    """What `sonde replay` and `sonde diagnose` need besides the run and the step."""
    problem: str = ""
    """Why the step cannot be replayed; empty if it can."""
    script: str = ""
    """The command that a replay runs, and where; empty if it runs nothing of the run's own."""


def how_to_replay(run: Path, manifest: Manifest | None, step: int) -> Replaying:
    """Return how a step of a run is replayed, or why it cannot be."""
    if manifest is None:
        return Replaying(
            problem="The manifest of the run cannot be read, so it cannot be replayed."
        )
    if is_built_in(manifest):
        return Replaying()
    kept = RunLayout(run).kept_states
    if kept.is_dir():
        try:
            words, directory = recorded_command(manifest)
        except SettingError as error:
            return Replaying(problem=f"The run cannot be replayed: {error.message}.")
        states = _kept_steps(kept)
        if not any(state < step for state in states):
            first = (
                f"the oldest kept state is after step {min(states):,}" if states else "none kept"
            )
            return Replaying(
                problem=f"Step {step:,} can no longer be replayed: a replay starts from a kept"
                f" state before it, and {first}."
            )
        return Replaying((AGAIN,), script=f"{shlex.join(words)}   (in {directory})")
    if manifest.recipe is not None:
        return Replaying(("--trust-recipe",), script=manifest.recipe)
    if RunLayout(run).kept.is_dir():
        return Replaying(
            problem="This run kept batches but no states. Its steps are replayed from the script's"
            f" own checkpoints: sonde replay {run} --step {step} -- COMMAND that resumes from one."
        )
    return Replaying(
        problem="This run kept no states and batches, so its steps cannot be replayed. A"
        " sonde.Recorder in the loop keeps them."
    )


def next_commands(
    run: Path,
    step: int,
    replaying: Replaying,
    *,
    has_verdict: bool,
    has_samples: bool,
    is_explained: bool = False,
) -> list[tuple[str, str]]:
    """Return the commands to run next, each with what it does: only those that work. `is_explained`
    says that what happened is known without a verdict, as after a restart.
    """
    place = shlex.quote(str(run))
    flags = "".join(f" {flag}" for flag in replaying.flags)
    lines = []
    if not replaying.problem:
        if not is_explained:
            again = "find the cause again" if has_verdict else "find the cause"
            lines.append((again, f"sonde diagnose {place} --step {step}{flags}"))
        lines.append(("replay the step, bit for bit", f"sonde replay {place} --step {step}{flags}"))
    elif not has_verdict and not is_explained:
        lines.append(("read the cause off the curve", f"sonde why {place}"))
    if (has_verdict or has_samples) and _can_roll_back(run, step):
        lines.append(("plan a rollback", f"sonde rollback {place} --step {step}"))
    if has_samples:
        lines.append(("list all its samples", f"sonde spikes {place} --step {step}"))
        lines.append(("skip its worst sample", f"sonde skip {place} --step {step} --worst 1"))
    return lines


def _can_roll_back(run: Path, step: int) -> bool:
    """Return whether `sonde rollback` would: it refuses a step whose verdict names no cause."""
    if not RunLayout(run).verdict(step).exists():
        return True
    try:
        return read_verdict(run, step).names_a_cause
    except SondeError:
        return False


def _kept_steps(kept: Path) -> list[int]:
    try:
        return CheckpointFolder(kept).steps()
    except (SondeError, OSError):
        return []
