"""Saving a state that ranks hold in parts: every rank copies its own, and writes it while training goes on.

    snapshot    on every rank, at the same step: copy this rank's part; rank 0 makes the directory, and all agree on it
    write       in any thread: each rank writes its part and a note of its size and digest beside it; rank 0 waits for the notes of all,
                adds the rest of the state and the manifest, and gives the directory its name

Only `snapshot` and `save` talk to other ranks through the process group; `write` does through the directory alone, so that a thread never
meets the collectives of training. A rank that fails says so in its note; one that is gone writes nothing, and after a minute of that rank 0
gives up. Either way nothing appears under the checkpoint's name.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from torch import Tensor

from sonde import ranks
from sonde.checkpoint.folder import SHARD_FOLDER, STATE_FILE, TENSOR_FILE, CheckpointFolder, encode_document, write_new
from sonde.checkpoint.retention import About
from sonde.checkpoint.sharded import PartPlan, layout_of, part_name, plan_part
from sonde.checkpoint.state import split_state
from sonde.checkpoint.tensor_image import TensorImage
from sonde.errors import SondeError
from sonde.records import disk
from sonde.records.atomic import atomic_directory, write_file
from sonde.records.checksums import write_checksums
from sonde.records.files import read_small
from sonde.records.values import decode, encode

_PIECE_BYTES: Final = 64 << 20
_PATIENCE_SECONDS: Final = 60.0
"""Parts that have not grown for so long never will."""
_POLL_SECONDS: Final = 0.02
_FAILED: Final = ".failed"
"""How the note of a part ends that could not be written."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedSnapshot:
    """This rank's part of a state in memory, and the directory it goes to. Valid until the next one is taken."""

    step: int
    rank: int
    num_ranks: int
    document: bytes
    tensors: memoryview
    """The tensors that are not in parts."""
    part: memoryview
    place: Path
    """The directory, under its temporary name."""
    making: contextlib.ExitStack
    """On rank 0, what gives the directory its name when it is closed, or removes it when that fails."""


@final
class ShardSaver:
    """Saves the sharded states of one run. All ranks take the same steps at the same time."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._tensors = TensorImage()
        self._part = TensorImage()
        self._layout: list[object] = []
        self._plan = PartPlan((), {})

    def save(self, step: int, state: Mapping[str, Any], about: About) -> Path:
        """Save and wait until it is done; a failure on any rank is raised on all."""
        snapshot = self.snapshot(step, state, about)
        error = ""
        try:
            self.write(snapshot)
        except (OSError, SondeError) as failure:
            error = str(failure)
        _agree(error)
        return self._folder.path(step)

    def snapshot(self, step: int, state: Mapping[str, Any], about: About) -> ShardedSnapshot:
        """Copy this rank's part: what is changed afterwards is not in it. A failure on any rank is raised on all."""
        rank, num_ranks = ranks.rank(), ranks.world_size()
        with contextlib.ExitStack() as making:
            document, part, tensors, place, error = b"", memoryview(b""), memoryview(b""), "", ""
            try:
                split = split_state(state)
                part = self._copy_part(split.sharded)
                if rank == 0:
                    document = encode_document(step, split.document, about)
                    tensors = self._tensors.fill(split.tensors)
                    self._folder.check_space(len(document) + len(tensors) + num_ranks * len(part))
                    place = str(making.enter_context(_new_checkpoint(self._folder, step)))
            except (OSError, SondeError) as failure:
                error = str(failure)
            place = _agree(error, place)
            return ShardedSnapshot(
                step=step,
                rank=rank,
                num_ranks=num_ranks,
                document=document,
                tensors=tensors,
                part=part,
                place=Path(place),
                making=making.pop_all(),
            )

    def _copy_part(self, sharded: Mapping[str, Tensor]) -> memoryview:
        layout = layout_of(sharded)
        if layout != self._layout:
            self._plan, self._layout = plan_part(sharded), layout
        return self._part.fill(self._plan.parts_of(sharded), self._plan.header)

    def write(self, snapshot: ShardedSnapshot) -> Path | None:
        """Bring a snapshot to the disk. Rank 0 completes the checkpoint and returns its directory, the others None."""
        with snapshot.making:
            _write_part(snapshot)
            if snapshot.rank > 0:
                return None
            digests = _wait_for_parts(snapshot)
            write_new(snapshot.place / TENSOR_FILE, snapshot.tensors)
            write_new(snapshot.place / STATE_FILE, snapshot.document)
            write_checksums(snapshot.place, digests)
        return self._folder.path(snapshot.step)


@contextlib.contextmanager
def _new_checkpoint(folder: CheckpointFolder, step: int) -> Iterator[Path]:
    with folder.room_for(step) as path, atomic_directory(path) as temporary:
        disk.mkdir(temporary / SHARD_FOLDER)
        yield temporary


def _agree(error: str, place: str = "") -> str:
    """Raise on every rank when there is an error on any; the place that rank 0 tells."""
    told = ranks.gather([error, place])
    for rank, (failure, _) in enumerate(told):
        if failure:
            raise SondeError("a sharded checkpoint could not be saved", cause=f"rank {rank}: {failure}")
    return str(told[0][1])


def _note(place: Path, rank: int) -> Path:
    return place / f"part-{rank:05d}.json"


def _write_part(snapshot: ShardedSnapshot) -> None:
    """Write this rank's file, then the note that it is there, or that it could not be written."""
    name = f"{SHARD_FOLDER}/{part_name(snapshot.rank)}"
    try:
        digest = _write_in_pieces(snapshot.place / name, snapshot.part)
        note = {"name": name, "num_bytes": len(snapshot.part), "sha256": digest}
        write_file(_note(snapshot.place, snapshot.rank), encode(note))
    except OSError as error:
        # On a disk that takes nothing more there may still be room for a name. If not, rank 0 will lose patience.
        with contextlib.suppress(OSError):
            write_new(_note(snapshot.place, snapshot.rank).with_suffix(_FAILED), str(error).encode())
        raise


def _write_in_pieces(path: Path, payload: memoryview) -> str:
    """Write a new file, each piece synced before the next, so that others see it grow; returns its SHA-256."""
    digest = hashlib.sha256()
    descriptor = disk.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        for start in range(0, len(payload), _PIECE_BYTES):
            piece = payload[start : start + _PIECE_BYTES]
            disk.write_all(descriptor, piece)
            disk.fsync(descriptor)
            digest.update(piece)
    finally:
        disk.close(descriptor)
    return digest.hexdigest()


def _wait_for_parts(snapshot: ShardedSnapshot) -> dict[str, str]:
    """The digests of all ranks' files by their names, once all of them are there. The notes are removed."""
    notes = [_note(snapshot.place, rank) for rank in range(snapshot.num_ranks)]
    digests: dict[str, str] = {}
    sizes: list[int] = []
    patient_until = 0.0
    while notes:
        failed = next(snapshot.place.glob(f"*{_FAILED}"), None)
        if failed is not None:
            raise SondeError(
                f"{failed.stem} of the checkpoint could not be written",
                cause=read_small(failed).decode(errors="replace") or None,
            )
        if notes[0].exists():
            note: Any = decode(read_small(notes[0]))
            if (snapshot.place / note["name"]).stat().st_size == note["num_bytes"]:
                digests[note["name"]] = note["sha256"]
                disk.unlink(notes.pop(0))
                continue
        now = [path.stat().st_size for path in sorted((snapshot.place / SHARD_FOLDER).iterdir())]
        if now != sizes:
            sizes, patient_until = now, time.monotonic() + _PATIENCE_SECONDS
        if time.monotonic() > patient_until:
            raise SondeError(
                f"{notes[0].stem} of the checkpoint was not written",
                cause=f"nothing came for {_PATIENCE_SECONDS} seconds",
            )
        time.sleep(_POLL_SECONDS)
    return digests
