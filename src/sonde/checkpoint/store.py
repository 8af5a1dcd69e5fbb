"""A directory of checkpoints, each a directory of its own that appears by one rename and is verified when it is read.

    checkpoints/
      step-000000001000/
        state.json            everything but the tensors         (docs/formats/checkpoint.md)
        tensors.safetensors   the tensors, by name
        checksums.json        size and SHA-256 of both

A killed save leaves nothing under a final name. A torn, truncated, altered or missing file is named; `newest` falls back to the
newest checkpoint that verifies. Only directories that this module would make are ever read or removed.
"""

import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from sonde.checkpoint.state import join_state, split_state
from sonde.errors import DamagedFile, SettingError
from sonde.records import disk
from sonde.records.atomic import atomic_directory, sweep_temporaries, write_file
from sonde.records.checksums import verify_checksums, write_checksums
from sonde.records.values import decode, encode

FORMAT: Final = "sonde-checkpoint"
VERSION: Final = 1
_NAME: Final = re.compile(r"step-(?P<step>\d{12})")
_MAX_DOCUMENT_BYTES: Final = 1 << 30


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A checkpoint that cannot be used, and why."""

    step: int
    problems: list[str]


@final
class CheckpointStore:
    """The checkpoints of one run, by the number of updates that each was saved after."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    def path(self, step: int) -> Path:
        """Where the checkpoint after `step` updates is, or would be."""
        return self.directory / f"step-{step:012d}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first; nothing is verified."""
        if not self.directory.is_dir():
            return []
        found = [_NAME.fullmatch(entry.name) for entry in self.directory.iterdir() if entry.is_dir()]
        return sorted(int(match["step"]) for match in found if match)

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Save `state` as the checkpoint after `step` updates; returns its directory. One that exists is kept."""
        path = self.path(step)
        if path.exists():
            return path
        document, tensors = split_state(state)
        disk.make_directories(self.directory)
        sweep_temporaries(self.directory)
        with atomic_directory(path) as folder:
            contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
            write_file(folder / "tensors.safetensors", save(contiguous))
            header = {"format": FORMAT, "version": VERSION, "step": step, "state": document}
            write_file(folder / "state.json", encode(header, max_bytes=_MAX_DOCUMENT_BYTES))
            write_checksums(folder)
        return path

    def problems(self, step: int) -> list[str]:
        """What is wrong with a checkpoint, file by file; empty when every byte is as it was written."""
        return verify_checksums(self.path(step))

    def load(self, step: int) -> dict[str, Any]:
        """The state of a checkpoint, verified."""
        path = self.path(step)
        problems = self.problems(step)
        if problems:
            raise DamagedFile(f"the checkpoint {path} cannot be used", cause="; ".join(problems))
        try:
            header = decode((path / "state.json").read_bytes())
            tensors = load_file(path / "tensors.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise DamagedFile(f"the checkpoint {path} cannot be read", cause=str(error)) from error
        if not isinstance(header, dict) or header.get("format") != FORMAT or header.get("step") != step:
            raise DamagedFile(f"{path / 'state.json'} is not the state after {step} updates")
        state = join_state(header["state"], tensors)
        assert isinstance(state, dict)
        return state

    def newest(self) -> tuple[int | None, list[Rejected]]:
        """The newest step whose checkpoint verifies, and the newer ones that do not."""
        rejected: list[Rejected] = []
        for step in reversed(self.steps()):
            problems = self.problems(step)
            if not problems:
                return step, rejected
            rejected.append(Rejected(step=step, problems=problems))
        return None, rejected

    def prune(self, keep: int, *, protected: Collection[int] = ()) -> list[int]:
        """Remove the oldest checkpoints beyond the newest `keep`, never a protected one; returns the steps removed.

        The view is rebuilt from the disk. Nothing is removed unless the newest that stays verifies. `keep` of 0 or less keeps all.
        """
        steps = self.steps()
        candidates = [step for step in steps[:-keep] if step not in protected] if keep > 0 else []
        if not candidates or self.problems(steps[-1]):
            return []
        for step in candidates:
            self._remove(step)
        return candidates

    def _remove(self, step: int) -> None:
        """Under another name first, so that a kill in the middle leaves no half checkpoint under a good name."""
        if step not in self.steps():
            raise SettingError(f"there is no checkpoint after {step} updates in {self.directory}")
        doomed = self.directory / f".deleting-{self.path(step).name}"
        shutil.rmtree(doomed, ignore_errors=True)
        disk.replace(self.path(step), doomed)
        shutil.rmtree(doomed, ignore_errors=True)
