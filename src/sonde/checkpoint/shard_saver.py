"""Saving a state that ranks hold in parts: every rank copies its own, and writes it while training goes on.

    snapshot    on every rank, at the same step: copy this rank's part; rank 0 makes the directory, and all agree on it
    write       in any thread: each rank writes its part and a note of its size and digest beside it; rank 0 waits for the notes of all,
                adds the rest of the state and the manifest, and gives the directory its name

Only `snapshot` and `save` talk to other ranks through the process group; `write` does through the folder alone, so that a thread never
meets the collectives of training. A rank that fails says so in its note; one that is gone writes nothing, and after a minute of that rank 0
gives up. Either way nothing appears under the checkpoint's name.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from torch import Tensor

from sonde import ranks
from sonde.checkpoint.folder import SHARD_FOLDER, CheckpointFolder, encode_document, fill_checkpoint
from sonde.checkpoint.retention import About
from sonde.checkpoint.sharded import PartPlan, layout_of, part_name, plan_part
from sonde.checkpoint.state import split_state
from sonde.checkpoint.tensor_image import TensorImage
from sonde.errors import SondeError
from sonde.records.storage import Storage, storage_at
from sonde.records.values import decode, encode

_PATIENCE_SECONDS: Final = 60.0
"""Parts that have not grown for so long never will; below a URL nobody sees them grow, and they get 30 times as long."""
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
    place: Storage
    """The folder, which is not whole yet."""
    making: contextlib.ExitStack
    """On rank 0, what makes the folder whole when it is closed, or removes it when that fails."""


@final
class ShardSaver:
    """Saves the sharded states of one run. All ranks take the same steps at the same time."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._tensors = TensorImage()
        self._part = TensorImage()
        self._layout: list[object] = []
        self._plan = PartPlan((), {})

    def save(self, step: int, state: Mapping[str, Any], about: About) -> Path | str:
        """Save and wait until it is done; a failure on any rank is raised on all."""
        snapshot = self.snapshot(step, state, about)
        error = ""
        try:
            self.write(snapshot)
        except (OSError, SondeError) as failure:
            error = str(failure)
        _agree(error)
        return self._folder.where(step)

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
                    self._folder.storage.check_space(len(document) + len(tensors) + num_ranks * len(part))
                    place = str(making.enter_context(self._folder.create(step)).where)
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
                place=storage_at(place),
                making=making.pop_all(),
            )

    def _copy_part(self, sharded: Mapping[str, Tensor]) -> memoryview:
        layout = layout_of(sharded)
        if layout != self._layout:
            self._plan, self._layout = plan_part(sharded), layout
        return self._part.fill(self._plan.parts_of(sharded), self._plan.header)

    def write(self, snapshot: ShardedSnapshot) -> Path | str | None:
        """Bring a snapshot to its place. Rank 0 completes the checkpoint and returns where it is, the others None."""
        with snapshot.making:
            _write_part(snapshot)
            if snapshot.rank > 0:
                return None
            fill_checkpoint(snapshot.place, snapshot.document, snapshot.tensors, lambda: _wait_for_parts(snapshot))
        return self._folder.where(snapshot.step)


def _agree(error: str, place: str = "") -> str:
    """Raise on every rank when there is an error on any; the place that rank 0 tells."""
    told = ranks.gather([error, place])
    for rank, (failure, _) in enumerate(told):
        if failure:
            raise SondeError("a sharded checkpoint could not be saved", cause=f"rank {rank}: {failure}")
    return str(told[0][1])


def _note(rank: int) -> str:
    return f"part-{rank:05d}"


def _write_part(snapshot: ShardedSnapshot) -> None:
    """Write this rank's file, then the note that it is there, or that it could not be written."""
    name, note, place = f"{SHARD_FOLDER}/{part_name(snapshot.rank)}", _note(snapshot.rank), snapshot.place
    try:
        digest = place.write(name, snapshot.part)
        place.write(f"{note}.json", encode({"name": name, "num_bytes": len(snapshot.part), "sha256": digest}))
    except OSError as error:
        # On a disk that takes nothing more there may still be room for a name. If not, rank 0 will lose patience.
        place.leave(f"{note}{_FAILED}", str(error).encode())
        raise


def _wait_for_parts(snapshot: ShardedSnapshot) -> dict[str, str]:
    """The digests of all ranks' files by their names, once all of them are there. The notes are removed."""
    place, waiting = snapshot.place, [_note(rank) for rank in range(snapshot.num_ranks)]
    slowness = 1 if place.is_local else 30
    digests: dict[str, str] = {}
    known: dict[str, int] = {}
    patient_until = 0.0
    while waiting:
        sizes = place.sizes()
        for failed in (name for name in sizes if name.endswith(_FAILED)):
            raise SondeError(
                f"{failed.removesuffix(_FAILED)} of the checkpoint could not be written",
                cause=place.read(failed).decode(errors="replace") or None,
            )
        if f"{waiting[0]}.json" in sizes:
            note: Any = decode(place.read(f"{waiting[0]}.json"))
            if sizes.get(note["name"]) == note["num_bytes"]:
                digests[note["name"]] = note["sha256"]
                place.remove(f"{waiting.pop(0)}.json")
                continue
        if sizes != known:
            known, patient_until = sizes, time.monotonic() + slowness * _PATIENCE_SECONDS
        if time.monotonic() > patient_until:
            raise SondeError(
                f"{waiting[0]} of the checkpoint was not written",
                cause=f"nothing came for {slowness * _PATIENCE_SECONDS:g} seconds",
            )
        time.sleep(slowness * _POLL_SECONDS)
    return digests
