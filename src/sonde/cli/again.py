"""`--again` for a run that keeps no states: its recorded command, from the newest of the script's
own checkpoints before the step.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from sonde.checkpoint.digest_log import read_digests
from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.resume_command import newest_existing, resumed_command, script_checkpoints
from sonde.errors import SettingError
from sonde.forensics.rollback import newest_of_host
from sonde.records.layout import RunLayout


def from_checkpoint(
    run: Path, words: Sequence[str], directory: Path, step: int | None
) -> tuple[list[str], str]:
    """Return the command to run, and the checkpoint that it resumes from in words, empty if a kept
    state or the beginning is what it is replayed from. Raises if it is not known how the script
    resumes.
    """
    kept = CheckpointFolder(RunLayout(run).kept_states).steps()
    if step is None or any(number < step for number in kept):
        return list(words), ""
    host = newest_of_host(run, step)
    if host is not None and host.host == "huggingface":
        # SondeCallback resumes from it in a replay.
        return list(words), f"{host.path} (after {host.step} steps)" if host.path else ""
    known = script_checkpoints(read_digests(run).states)
    newest = newest_existing(known, directory, step)
    if newest is None:
        return list(words), ""
    resumed = resumed_command(words, newest, known, directory)
    if resumed is None:
        way = host.way_on if host is not None and host.path else ""
        typed = f"`sonde replay {run} --step {step} -- {shlex.join(words)[:200]} …`"
        raise SettingError(
            f"the run does not say how its script resumes from {newest}",
            cause=f"it was started as {shlex.join(words)}"[:1000],
            hint=_hint(typed, way),
        )
    return resumed, str(newest)


def _hint(typed: str, way: str) -> str:
    if way:
        return f"type the command, so that the script calls {way}: {typed}"
    return (
        f"type the command, with what resumes your script from there: {typed}; next time let the"
        ' script say it: recorder.checkpoint(path, resume=["--resume", path])'
    )
