"""The command that resumes a script from one of its own checkpoints. Pure but for asking whether
files exist; needs no torch.

    checkpoints = script_checkpoints(read_digests(run).states, directory)
    resumed_command(words, checkpoints[-1], checkpoints, directory)

The run has recorded the command that it was started with. If one of its words is a checkpoint of
the run, the other checkpoint takes its place. If the script said how it resumes,
`recorder.checkpoint(path, resume=["--resume", path])`, those words are added. Otherwise it is not
known.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sonde.checkpoint.digest_log import StateDigest


class ScriptCheckpoint(NamedTuple):
    """A checkpoint that a script has written."""

    step: int
    """The number of updates before it."""
    path: str
    """Where it is, as the script named it."""
    resume: Sequence[str] = ()
    """The words of a command line that resume from it, if the script said so."""

    def __str__(self) -> str:
        return f"{self.path} (after {self.step} steps)"


def script_checkpoints(
    states: Sequence[StateDigest], before: int | None = None
) -> list[ScriptCheckpoint]:
    """Return the checkpoints that a run has recorded, by step; those of steps before `before`."""
    by_path: dict[str, ScriptCheckpoint] = {}
    for state in states:
        if not state.path:
            continue
        known = by_path.get(state.path)
        resume = state.resume
        if known is not None and known.step == state.step:
            resume = resume or known.resume
        # One that was written over is of its last step.
        by_path[state.path] = ScriptCheckpoint(state.step, state.path, resume)
    found = sorted(by_path.values())
    return [checkpoint for checkpoint in found if before is None or checkpoint.step < before]


def newest_existing(
    known: Sequence[ScriptCheckpoint], directory: Path, before: int
) -> ScriptCheckpoint | None:
    """Return the newest checkpoint before a step that is still there."""
    for checkpoint in reversed(known):
        if checkpoint.step < before and (directory / checkpoint.path).exists():
            return checkpoint
    return None


def resumed_command(
    words: Sequence[str],
    checkpoint: ScriptCheckpoint,
    known: Sequence[ScriptCheckpoint],
    directory: Path,
) -> list[str] | None:
    """Return a recorded command with which the script resumes from a checkpoint; None if it is not
    known how. `directory` is where it was run, `known` are all checkpoints of the run.
    """
    places = {directory / other.path for other in known}
    changed = []
    is_named = False
    for word in words:
        flag, equals, value = word.partition("=")
        if directory / word in places:
            changed.append(checkpoint.path)
            is_named = True
        elif value and directory / value in places:
            changed.append(f"{flag}{equals}{checkpoint.path}")
            is_named = True
        else:
            changed.append(word)
    if is_named:
        return changed
    return [*words, *checkpoint.resume] if checkpoint.resume else None
