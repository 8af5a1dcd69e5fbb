"""The user's own script as the recipe of a replay: `-- python train.py …`, or `--again` for the command that the run recorded.

Running it is running code, so the recorded command is shown first, and needs a yes: on the terminal, or by `--yes`.
"""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import final

import msgspec
from rich.console import Console
from rich.text import Text

from sonde.errors import SettingError
from sonde.flight.launching import launch, recorded_command
from sonde.forensics.verdict import Verdict
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.replay_order import ReplayOrder
from sonde.train.settings import is_built_in


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """How to run the script of a run that was trained by one; or give its command after `--`."""

    again: bool = False
    """Run the command that the run was started with, as it was recorded; it is shown first."""
    yes: bool = False
    """Do not ask before running it."""


def command_of(
    run: Path, command: Sequence[str], script: Script | None, *, recipe: str | None = None, trust_recipe: bool = False
) -> tuple[list[str], Path | None] | None:
    """The command to run and where; None when the run is built by a recipe. Refuses a run that says nothing of either."""
    script, manifest = script or Script(), read_manifest(run)
    if command:
        return list(command), None
    if script.again:
        words, directory = recorded_command(manifest)
        _ask(words, directory, script)
        return words, directory
    if is_built_in(manifest) or recipe is not None or (manifest.recipe is not None and trust_recipe):
        return None
    if RunLayout(run).kept_states.is_dir():
        raise SettingError(
            f"the run {manifest.run_id} was trained by a script of its own, which has to be run for this",
            cause="its model and its step function are in the script",
            hint=f"give the command, `-- {shlex.join(manifest.command)[:200]}`, or run it as it was recorded with --again",
        )
    if manifest.recipe is None:
        raise SettingError(
            f"the run {manifest.run_id} does not say how its model and data are built",
            cause="it was neither trained by `sonde train`, nor watched by a FlightRecorder, nor opened with Run(…, recipe=…)",
            hint="watch the training with a FlightRecorder (docs/any-loop.md), or name a function: --recipe MODULE:FUNCTION",
        )
    return None


def diagnosed_by_script(run: Path, step: int | None, started: tuple[list[str], Path | None]) -> Verdict:
    """Run the user's script for a diagnosis; it writes the verdict into the run."""
    order = ReplayOrder(run=str(run.absolute()), verb="diagnose", answer="", step=step)
    return msgspec.convert(launch(order, *started)["verdict"], Verdict)


def _ask(words: Sequence[str], directory: Path, script: Script) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Text(f"this runs in {directory}:\n  {shlex.join(words)}", style="bold"))
    if script.yes:
        return
    if not sys.stdin.isatty():
        raise SettingError("the recorded command was not run", cause="nobody can be asked here", hint="say --yes")
    console.print("run it? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SettingError("the recorded command was not run")
