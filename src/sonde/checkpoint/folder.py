"""A folder of checkpoints: names, verification and removal. Needs no torch, so a laptop can list,
verify and prune.

    checkpoints/
      step-000000001000/
        state.json            everything but the tensors         (docs/formats/checkpoint.md)
        tensors.safetensors   the tensors, by name
        sharded/              the sharded tensors, if there are any
        checksums.json        size and SHA-256 of all of them

A checkpoint appears only when complete: on disk by one rename after everything in it was synced;
below a URL once its checksums.json exists (records/storage.py). A killed save leaves nothing that
could be mistaken for a checkpoint. Saving a step again replaces its checkpoint: the old one is kept
under a name that is still found until the new one is complete. Only folders that this module would
create are ever read or removed.

Pruning keeps the newest k and the best by a metric, and never removes a good checkpoint in favor of
a bad one.

    doomed = steps_to_remove(entries, Keep(newest=4, metric="loss"))

A checkpoint saved as distrusted (its weights contained NaN) does not count among the newest k, so
it cannot push out a good one.
"""

import contextlib
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from sonde.errors import DamagedFile, SettingError
from sonde.records.checksums import encode_checksums, verify_checksums
from sonde.records.storage import IDENTITY, MANIFEST, Payload, Storage, storage_at
from sonde.records.values import decode, encode

FORMAT: Final = "sonde-checkpoint"
VERSION: Final = 1
STATE_FILE: Final = IDENTITY
TENSOR_FILE: Final = "tensors.safetensors"
SHARD_FOLDER: Final = "sharded"
_NAME: Final = re.compile(r"(?:\.replaced-)?step-(?P<step>\d{12})")
_ASIDE: Final = ".replaced-"
_MAX_DOCUMENT_BYTES: Final = 1 << 30

Entries: TypeAlias = Mapping[str, Mapping[str, object]]
"""The size and digest of files by name, as the manifest lists them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a checkpoint says about itself, besides its state."""

    run_id: str | None = None
    """The run that saved it. A run only prunes its own checkpoints."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Results of the last evaluation before it."""
    distrusted: str | None = None
    """Why its weights are suspect; None if they are not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """Which checkpoints to keep."""

    newest: int = 4
    """How many of the newest to keep; 0 or less keeps all."""
    metric: str | None = None
    """Also keep the best checkpoint by this evaluation metric."""
    mode: Literal["min", "max"] = "min"
    """Whether a lower ("min") or higher ("max") metric is better."""

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise SettingError(f'mode must be "min" or "max", not {self.mode!r}')


def steps_to_remove(
    entries: Mapping[int, About], keep: Keep, *, protected: Collection[int] = ()
) -> list[int]:
    """Return the steps that may be removed, oldest first. Of equally good ones the earliest
    stays.
    """
    if keep.newest <= 0:
        return []
    trusted = sorted(step for step, about in entries.items() if about.distrusted is None)
    distrusted = sorted(entries.keys() - set(trusted))
    stay = {*trusted[-keep.newest :], *distrusted[-keep.newest :], *protected}
    values = {step: entries[step].metrics.get(keep.metric or "") for step in trusted}
    measured = {
        step: value
        for step, value in values.items()
        if isinstance(value, (int, float)) and not math.isnan(value)
    }
    if measured:
        stay.add((min if keep.mode == "min" else max)(measured, key=measured.__getitem__))
    return sorted(entries.keys() - stay)


def encode_document(step: int, document: object, about: About) -> bytes:
    """Return the content of state.json."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        **asdict(about),
        "state": document,
    }
    return encode(header, max_bytes=_MAX_DOCUMENT_BYTES)


def read_document(storage: Storage, step: int | None = None) -> dict[str, Any]:
    """Read a checkpoint's state.json. Only its own fields are verified: that it is the one after
    `step` updates.
    """
    file = f"{storage.where}/{STATE_FILE}"
    try:
        header = decode(storage.read(STATE_FILE, max_bytes=_MAX_DOCUMENT_BYTES))
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{file} cannot be read", cause=str(error)) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DamagedFile(f"{file} is not the state of a checkpoint")
    if header.get("version") != VERSION or not isinstance(header.get("state"), dict):
        raise DamagedFile(
            f"{file} has version {header.get('version')!r}",
            hint=f"this sonde reads version {VERSION}",
        )
    if step not in (None, header.get("step")):
        raise DamagedFile(f"{file} is not the state after {step} steps")
    return header


def fill_checkpoint(storage: Storage, document: bytes, tensors: Payload) -> None:
    """Write the files of a checkpoint into its new folder, checksums last."""
    write_checksums(storage, write_files(storage, {STATE_FILE: document, TENSOR_FILE: tensors}))


def write_files(storage: Storage, files: Mapping[str, Payload]) -> Entries:
    """Write files in the given order; return the size and digest of each."""
    return {
        name: {"num_bytes": len(payload), "sha256": storage.write(name, payload)}
        for name, payload in files.items()
    }


def write_checksums(storage: Storage, entries: Entries) -> None:
    """Write the manifest, which makes the folder complete."""
    storage.write(MANIFEST, encode_checksums(entries))


class CheckpointFolder:
    """The checkpoints in a folder or below a URL, by the number of updates after which each was
    saved.

    ```python
    from sonde.checkpoint import CheckpointFolder, CheckpointStore, Keep

    store = CheckpointStore("checkpoints")
    for step in (100, 200, 300):
        store.save(step, {"note": step})
    folder = CheckpointFolder("checkpoints")
    assert folder.steps() == [100, 200, 300]
    assert folder.prune(Keep(newest=2)) == [100]
    ```
    """

    def __init__(self, directory: str | os.PathLike[str], *, run_id: str | None = None) -> None:
        """With a `run_id`, pruning ignores the checkpoints of other runs."""
        self.storage = storage_at(directory)
        self.directory: Path | str = self.storage.where
        self.run_id = run_id

    def where(self, step: int) -> Path | str:
        """Return where the checkpoint after `step` updates is saved."""
        return self.storage.at(_name(step)).where

    def at(self, step: int) -> Storage:
        """Return the storage of the checkpoint after `step` updates, which may be empty."""
        return self.storage.at(self._held_as(step))

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first; nothing is verified."""
        found = map(_NAME.fullmatch, self.storage.folders())
        return sorted({int(match["step"]) for match in found if match})

    def problems(self, step: int, *, only_sizes: bool = False) -> list[str]:
        """Return what is wrong with a checkpoint, file by file; empty if every byte is intact."""
        return verify_checksums(self.at(step), only_sizes=only_sizes)

    def num_bytes(self, step: int) -> int:
        """Return the size of a checkpoint in bytes."""
        return sum(self.at(step).sizes().values())

    def is_sharded(self, step: int) -> bool:
        """Return whether a checkpoint contains sharded tensors."""
        return any(name.startswith(f"{SHARD_FOLDER}/") for name in self.at(step).sizes())

    def document(self, step: int) -> dict[str, Any]:
        """Read a checkpoint's state.json. Only its own fields are verified."""
        return read_document(self.at(step), step)

    def entries(self) -> dict[int, About]:
        """Return the checkpoints that this run may prune, oldest first; unreadable ones are left
        out.
        """
        found = {}
        for step in self.steps():
            with contextlib.suppress(DamagedFile):
                header = self.document(step)
                metrics = header.get("metrics")
                run_id = header.get("run_id")
                known = metrics if isinstance(metrics, dict) else {}
                if self.run_id in (None, run_id):
                    found[step] = About(
                        run_id=run_id, metrics=known, distrusted=header.get("distrusted")
                    )
        return found

    def newest(self) -> tuple[int | None, dict[int, list[str]]]:
        """Return the newest step whose checkpoint verifies, and what is wrong with each newer
        one.
        """
        rejected: dict[int, list[str]] = {}
        for step in reversed(self.steps()):
            problems = self.problems(step)
            if not problems:
                return step, rejected
            rejected[step] = problems
        return None, rejected

    @contextlib.contextmanager
    def create(self, step: int) -> Iterator[Storage]:
        """Create a folder to fill with a checkpoint; an existing one is deleted once the new one is
        complete.
        """
        self._sweep()
        final = _name(step)
        if final in self.storage.folders():
            self.storage.move(final, f"{_ASIDE}{final}")
        with self.storage.create(final) as new:
            yield new
        if f"{_ASIDE}{final}" in self.storage.folders():
            self.storage.delete(f"{_ASIDE}{final}")

    def write(self, step: int, document: bytes, tensors: "memoryview | bytes") -> Path | str:
        """Save a checkpoint from the bytes of its two files and return where it is."""
        with self.create(step) as new:
            fill_checkpoint(new, document, tensors)
        return self.where(step)

    def prune(self, keep: Keep, *, protected: Collection[int] = ()) -> list[int]:
        """Remove the checkpoints that `keep` does not cover, never a protected one; return the
        removed steps.

        The list is rebuilt from what is on disk. Nothing is removed unless the newest remaining
        checkpoint verifies (by size only if it is remote).
        """
        entries = self.entries()
        doomed = steps_to_remove(entries, keep, protected=protected)
        staying = [
            step for step in entries if step not in doomed and entries[step].distrusted is None
        ]
        if (
            not doomed
            or not staying
            or self.problems(staying[-1], only_sizes=not self.storage.is_local)
        ):
            return []
        for step in doomed:
            self.remove(step)
        return doomed

    def remove(self, step: int) -> None:
        """Remove one checkpoint."""
        if step not in self.steps():
            raise SettingError(f"there is no checkpoint after {step} steps in {self.directory}")
        self.storage.delete(self._held_as(step))

    def set_aside(self, steps: Iterable[int]) -> Path | str:
        """Move checkpoints to a new folder beside the others, where no resume looks; return where.

        Newest first: if this is interrupted, only earlier ones remain, and repeating it completes
        it.
        """
        aside = datetime.now(timezone.utc).strftime("set-aside-%Y%m%d-%H%M%S-%f")
        for step in sorted(steps, reverse=True):
            self.storage.move(self._held_as(step), f"{aside}/{_name(step)}")
        return self.storage.at(aside).where

    def _held_as(self, step: int) -> str:
        """Return the name of a checkpoint's folder, which differs while it is being replaced."""
        final = _name(step)
        folders = self.storage.folders()
        aside = f"{_ASIDE}{final}"
        return aside if final not in folders and aside in folders else final

    def _sweep(self) -> None:
        """Remove what interrupted saves and removals left behind."""
        for name in self.storage.unfinished():
            if _NAME.fullmatch(name) and self._is_mine(name):
                self.storage.delete(name)
        folders = self.storage.folders()
        for name in folders:
            if name.startswith(_ASIDE) and name.removeprefix(_ASIDE) in folders:
                self.storage.delete(name)

    def _is_mine(self, name: str) -> bool:
        """Return whether this run began the folder. Other runs may be saving in the same place."""
        try:
            return (
                self.run_id is not None
                and read_document(self.storage.at(name)).get("run_id") == self.run_id
            )
        except DamagedFile:
            return False


def describe_problems(rejected: Mapping[int, Sequence[str]]) -> str:
    """Return one line that says what is wrong with each rejected checkpoint."""
    return "; ".join(f"{_name(step)}: {', '.join(problems)}" for step, problems in rejected.items())


def _name(step: int) -> str:
    return f"step-{step:012d}"
