"""A folder of checkpoints: their names, their verification, their removal. No torch: a laptop can list, verify and prune.

    checkpoints/
      step-000000001000/
        state.json            everything but the tensors         (docs/formats/checkpoint.md)
        tensors.safetensors   the tensors, by name
        sharded/              the tensors that ranks hold in parts, when there are any
        checksums.json        size and SHA-256 of all of them

A checkpoint appears by one rename, after everything in it was synced. A killed save leaves nothing under a final name. A checkpoint that is
saved again replaces the one of the same step: the old one is set aside under a name that is still found, until the new one is there.
Only directories that this module would make are ever read or removed.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

from sonde.checkpoint.retention import About, Entry, Keep, steps_to_remove
from sonde.errors import DamagedFile, SettingError, SondeError
from sonde.records import disk
from sonde.records.atomic import atomic_directory, sweep_temporaries
from sonde.records.checksums import verify_checksums, write_checksums
from sonde.records.files import check_folder, read_small
from sonde.records.values import decode, encode

FORMAT: Final = "sonde-checkpoint"
VERSION: Final = 1
STATE_FILE: Final = "state.json"
TENSOR_FILE: Final = "tensors.safetensors"
SHARD_FOLDER: Final = "sharded"
_NAME: Final = re.compile(r"(?:\.replaced-)?step-(?P<step>\d{12})")
_DELETED: Final = re.compile(r"\.deleting-step-\d{12}")
_MAX_DOCUMENT_BYTES: Final = 1 << 30


def encode_document(step: int, document: object, about: About) -> bytes:
    """The content of state.json."""
    header = {"format": FORMAT, "version": VERSION, "step": step, **asdict(about), "state": document}
    return encode(header, max_bytes=_MAX_DOCUMENT_BYTES)


def read_document(path: Path) -> dict[str, Any]:
    """The content of a checkpoint's state.json, whose bytes should have been verified before."""
    try:
        header = decode(read_small(path / STATE_FILE, max_bytes=_MAX_DOCUMENT_BYTES))
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{path / STATE_FILE} cannot be read", cause=str(error)) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DamagedFile(f"{path / STATE_FILE} is not the state of a checkpoint")
    if header.get("version") != VERSION or not isinstance(header.get("state"), dict):
        raise DamagedFile(
            f"{path / STATE_FILE} has version {header.get('version')!r}", hint=f"this sonde reads version {VERSION}"
        )
    return header


def write_checkpoint(path: Path, document: bytes, tensors: "memoryview | bytes") -> None:
    """Make a checkpoint directory of its two files, whole or not at all."""
    with atomic_directory(path) as folder:
        write_new(folder / TENSOR_FILE, tensors)
        write_new(folder / STATE_FILE, document)
        write_checksums(folder)


def write_new(path: Path, payload: "memoryview | bytes") -> None:
    """Write a file that does not exist yet; whoever makes its directory final syncs it."""
    descriptor = disk.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        disk.write_all(descriptor, payload)
    finally:
        disk.close(descriptor)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A checkpoint that cannot be used, and why."""

    step: int
    problems: list[str]


@final
class CheckpointFolder:
    """The checkpoints in one directory, by the number of updates that each was saved after."""

    def __init__(self, directory: str | Path, *, run_id: str | None = None) -> None:
        """With a `run_id`, pruning passes over the checkpoints of other runs."""
        self.directory = Path(directory).absolute()
        self.run_id = run_id

    def path(self, step: int) -> Path:
        """Where the checkpoint after `step` updates is, or would be."""
        final, aside = self._final(step), self._aside(step)
        return aside if not final.exists() and aside.exists() else final

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first; nothing is verified."""
        if self.directory.is_symlink() and (self.directory.parent / "run.json").exists():
            # A run's own folder, not one that somebody named.
            check_folder(
                self.directory, hint=f"name the folder it leads to instead: {os.path.realpath(self.directory)}"
            )
        if not self.directory.is_dir():
            return []
        names = [entry.name for entry in self.directory.iterdir() if entry.is_dir() and not entry.is_symlink()]
        return sorted({int(match["step"]) for match in map(_NAME.fullmatch, names) if match})

    def problems(self, step: int) -> list[str]:
        """What is wrong with a checkpoint, file by file; empty when every byte is as it was written."""
        return verify_checksums(self.path(step))

    def num_bytes(self, step: int) -> int:
        """The size of a checkpoint on the disk."""
        return sum(path.stat().st_size for path in self.path(step).rglob("*") if path.is_file())

    def document(self, step: int) -> dict[str, Any]:
        """A checkpoint's state.json. Not verified beyond its own fields."""
        header = read_document(self.path(step))
        if header.get("step") != step:
            raise DamagedFile(f"{self.path(step) / STATE_FILE} is not the state after {step} updates")
        return header

    def entries(self) -> list[Entry]:
        """The checkpoints that are this run's to prune, oldest first; those that cannot be read are nobody's."""
        found = []
        for step in self.steps():
            with contextlib.suppress(DamagedFile):
                header = self.document(step)
                if self.run_id in (None, header.get("run_id")):
                    found.append(Entry(step=step, about=_about(header)))
        return found

    def newest(self) -> tuple[int | None, list[Rejected]]:
        """The newest step whose checkpoint verifies, and the newer ones that do not."""
        rejected: list[Rejected] = []
        for step in reversed(self.steps()):
            problems = self.problems(step)
            if not problems:
                return step, rejected
            rejected.append(Rejected(step=step, problems=problems))
        return None, rejected

    @contextlib.contextmanager
    def room_for(self, step: int) -> Iterator[Path]:
        """Write a new checkpoint at the path given, which is free now; the one it replaces goes once it is there."""
        disk.make_directories(self.directory)
        self._sweep()
        final, aside = self._final(step), self._aside(step)
        if final.exists():
            disk.replace(final, aside)
        yield final
        if aside.exists():
            self._delete(aside)

    def write(self, step: int, document: bytes, tensors: "memoryview | bytes") -> Path:
        """Save a checkpoint from the bytes of its two files; returns its directory."""
        with self.room_for(step) as path:
            write_checkpoint(path, document, tensors)
        return path

    def check_space(self, num_bytes: int) -> None:
        """Raise unless the directory can be made, written to, and has room for `num_bytes` more."""
        try:
            disk.make_directories(self.directory)
            free = shutil.disk_usage(self.directory).free
        except OSError as error:
            raise SondeError(f"checkpoints cannot be saved in {self.directory}", cause=str(error)) from error
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise SondeError(f"checkpoints cannot be saved in {self.directory}", cause="it cannot be written to")
        if free < num_bytes:
            raise SondeError(
                f"there is no room for a checkpoint in {self.directory}",
                cause=f"it needs {num_bytes / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free",
                hint="free some space, or save to another disk",
            )

    def prune(self, keep: Keep, *, protected: Collection[int] = ()) -> list[int]:
        """Remove what `keep` lets go, never a protected step; returns the steps removed.

        The view is rebuilt from the disk. Nothing is removed unless the newest that stays verifies.
        """
        entries = self.entries()
        doomed = steps_to_remove(entries, keep, protected=protected)
        staying = [entry.step for entry in entries if entry.step not in doomed and entry.about.distrusted is None]
        if not doomed or not staying or self.problems(staying[-1]):
            return []
        for step in doomed:
            self.remove(step)
        return doomed

    def remove(self, step: int) -> None:
        """Remove one checkpoint."""
        if step not in self.steps():
            raise SettingError(f"there is no checkpoint after {step} updates in {self.directory}")
        self._delete(self.path(step))

    def _final(self, step: int) -> Path:
        return self.directory / f"step-{step:012d}"

    def _aside(self, step: int) -> Path:
        return self.directory / f".replaced-step-{step:012d}"

    def _delete(self, path: Path) -> None:
        """Under another name first, so that a kill in the middle leaves no half checkpoint under a good name."""
        doomed = self.directory / f".deleting-{path.name.removeprefix('.replaced-')}"
        shutil.rmtree(doomed, ignore_errors=True)
        disk.replace(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what killed saves and removals left."""
        sweep_temporaries(self.directory)
        for entry in self.directory.iterdir():
            if _DELETED.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)
        for step in self.steps():
            if self._aside(step).exists() and self._final(step).exists():
                self._delete(self._aside(step))


def _about(header: dict[str, Any]) -> About:
    metrics = header.get("metrics")
    return About(
        run_id=header.get("run_id"),
        metrics=metrics if isinstance(metrics, dict) else {},
        distrusted=header.get("distrusted"),
    )
