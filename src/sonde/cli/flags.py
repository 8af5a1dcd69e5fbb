"""Flags that several verbs share: where a run's data is now, and how to run its script again.

Replaying a run that was trained by somebody's own script runs arbitrary code: `-- python train.py
…`, or with `--again` the command that the run recorded. That one is shown first and needs
confirmation, on the terminal or with `--yes`.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter
from rich.text import Text

from sonde.cli.again import from_checkpoint
from sonde.cli.terminal import SafeConsole
from sonde.data.tokenizer_files import load_tokenizer
from sonde.errors import SettingError
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.replay_order import ReplayOptions, recorded_command
from sonde.spikes.decoding import Decoder
from sonde.train.settings import is_built_in


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Moved:
    """Current locations of a run's data and checkpoints."""

    data: Path | None = None
    """Current location of the run's data directory, if it has moved."""
    checkpoints: str | None = None
    """Folder or URL of the checkpoints, if they are not where the run recorded them."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Texts:
    """Where the text is."""

    data: Path | None = None
    """Current location of the data directory, if it has moved."""
    tokenizer: Path | None = None
    """Tokenizer file to decode with, instead of the one in the data directory."""

    def load_tokenizer(self) -> Decoder | None:
        """Return the tokenizer given by --tokenizer, or None."""
        return None if self.tokenizer is None else load_tokenizer(self.tokenizer)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Script:
    """How to run the training script of a run. Its command can also be given after `--`."""

    again: bool = False
    """Run the recorded command that started the run. The command is shown first."""
    yes: bool = False
    """Run the recorded command without asking for confirmation."""


def command_of(
    run: Path,
    command: Sequence[str],
    script: Script,
    options: ReplayOptions,
    step: int | None = None,
) -> tuple[list[str], Path | None] | None:
    """Return the command to run and its directory, or None if a recipe rebuilds the run. Raises if
    the run offers neither. `step` is the step in question.
    """
    manifest = read_manifest(run)
    if command:
        return list(command), None
    if script.again:
        words, directory = recorded_command(manifest)
        words, origin = from_checkpoint(run, words, directory, step)
        _ask(words, directory, script, origin)
        return words, directory
    if (
        is_built_in(manifest)
        or options.recipe is not None
        or (manifest.recipe is not None and options.trust_recipe)
    ):
        return None
    if RunLayout(run).kept.is_dir():
        raise SettingError(
            f"the run {manifest.run_id} was trained by a script of its own, which has to be run for"
            " this",
            cause="its model and its step function are in the script",
            hint=(
                f"give the command, `-- {shlex.join(manifest.command)[:200]}`, or run it as it was"
                " recorded with --again"
            ),
        )
    if manifest.recipe is None:
        raise SettingError(
            f"the run {manifest.run_id} does not say how its model and data are built",
            cause=(
                "it was neither trained by `sonde train`, nor watched by a Recorder, nor"
                " opened with Run(…, recipe=…)"
            ),
            hint=(
                "watch the training with a Recorder (docs/any-loop.md), or name a function:"
                " --recipe MODULE:FUNCTION"
            ),
        )
    return None


def _ask(words: Sequence[str], directory: Path, script: Script, origin: str) -> None:
    # Everything here comes from a file that anybody may have written.
    console = SafeConsole(stderr=True, soft_wrap=True)
    if origin:
        console.print(Text(f"from the script's own checkpoint {_on_one_line(origin)}"))
    console.print(Text(f"this runs in {_on_one_line(str(directory))}:", style="bold"))
    for word in words:  # one a line, so that none can pass for several
        console.print(Text(f"  {_on_one_line(word)}"))
    if script.yes:
        return
    if not sys.stdin.isatty():
        raise SettingError(
            "the recorded command was not run", cause="nobody can be asked here", hint="say --yes"
        )
    console.print(Text("run it? [y/N] "), end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SettingError("the recorded command was not run")


def _on_one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")
