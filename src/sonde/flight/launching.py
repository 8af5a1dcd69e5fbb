"""Restart a user's script for a replay: its command is run unchanged, with an order in its environment. Needs no torch.

Running a command executes code. It is either what the user typed after `--`, or what the run recorded, shown before it
is run.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sonde.errors import RunError, SettingError, SondeError
from sonde.records.files import read_small
from sonde.records.manifest import Manifest
from sonde.records.replay_order import VARIABLE, ReplayOrder, write_order
from sonde.records.values import decode

_QUIET: Final = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
"""Environment variables that disable other trackers during a replay."""


def recorded_command(manifest: Manifest) -> tuple[list[str], Path]:
    """Return the command that the run was last started with, including its launcher, and its working directory."""
    launcher = manifest.host.get("launcher")
    words = launcher if isinstance(launcher, list) and launcher else manifest.command
    if not words or not all(isinstance(one, str) for one in words):
        raise SettingError(
            f"the run {manifest.run_id} does not say how it was started",
            hint="give the command after --: -- python train.py",
        )
    return list(words), Path(str(manifest.host.get("directory") or "."))


def launch(order: ReplayOrder, command: Sequence[str], directory: Path | None) -> Mapping[str, Any]:
    """Run a script for a replay and return its answer. The script's output goes to stderr."""
    with tempfile.TemporaryDirectory(prefix="sonde-replay-") as folder:
        path, answer = Path(folder, "order.json"), Path(folder, "answer.json")
        write_order(path, replace(order, answer=str(answer)))
        environment = {**os.environ, **_QUIET, VARIABLE: str(path)}
        try:
            done = subprocess.run(
                list(command), cwd=directory, env=environment, stdout=sys.stderr.fileno(), check=False
            )
        except (OSError, ValueError) as error:
            raise SettingError(f"cannot run {shlex.join(command)}", cause=str(error)) from None
        if not answer.exists():
            raise RunError(
                f"the script ended with exit code {done.returncode} before it made a step with a flight recorder",
                cause=f"it was run as {shlex.join(command)}"[:4000],
                hint="what it printed is above; its loop must call flight.step, and its Run must be opened before",
            )
        found: Any = decode(read_small(answer, max_bytes=1 << 30))
    if "error" in found:
        message, cause, hint = found["error"]
        raise SondeError(message, cause=cause, hint=hint)
    return dict(found)
