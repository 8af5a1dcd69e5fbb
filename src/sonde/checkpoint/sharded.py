"""Sharded tensors (FSDP2): which they are, this rank's part as a file, and loading them back.

The parts are safetensors files with their position in a JSON header, in the layout of `torch.distributed.checkpoint`,
which also plans what each rank saves and reads the files. Nothing is pickled, so loading cannot run code. The files are
part of the checkpoint and are verified by its checksums before torch reads them. A checkpoint can be loaded with
another number of ranks, or in a single process.

When saving, every rank copies its own part and writes it while training continues.

    snapshot    on every rank, at the same step: copy this rank's part; rank 0 creates the directory, and all agree on it
    write       in any thread: each rank writes its part and a note with its size and digest; rank 0 waits for all notes,
                adds the rest of the state and the checksums, and gives the directory its name

Only `snapshot` and `save` use the process group. `write` communicates through the folder alone, so a thread never
interferes with the collectives of training. A rank that fails says so in its note. A rank that died writes nothing, and
rank 0 gives up after a minute without progress. In both cases nothing appears under the checkpoint's name.
"""

import contextlib
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from sonde import ranks
from sonde.checkpoint.folder import SHARD_FOLDER, About, CheckpointFolder, encode_document, fill_checkpoint
from sonde.checkpoint.state import split_state
from sonde.checkpoint.tensor_image import TensorImage
from sonde.errors import SondeError
from sonde.records.storage import Storage, storage_at
from sonde.records.values import decode, encode

_LAYOUT: Final = {"DCP_VERSION": "1.0", "format": "pt"}
"""The metadata with which torch marks such a file."""
_PATIENCE_SECONDS: Final = 60.0
"""Give up on parts that have not grown for this many seconds; remote ones, whose growth is not visible, get 30 times as
long."""
_POLL_SECONDS: Final = 0.02
_FAILED: Final = ".failed"
"""Suffix of the note about a part that could not be written."""


def is_sharded(state: object) -> bool:
    """Return whether a state contains tensors that are sharded over ranks."""
    if isinstance(state, Mapping):
        return any(is_sharded(value) for value in state.values())
    if isinstance(state, (list, tuple)):
        return any(is_sharded(value) for value in state)
    return isinstance(state, DTensor)


def part_name(rank: int) -> str:
    """Return the name of a rank's file, following torch's convention."""
    return f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"


def plan_part(sharded: Mapping[str, Tensor]) -> "PartPlan":
    """Plan what this rank saves of sharded tensors, from their shapes, without communication; 0.4 ms per tensor."""
    planner = DefaultSavePlanner()
    planner.set_up_planner({name: tensor for name, tensor in sharded.items() if _is_first_to_hold(tensor)})
    places = {}
    for item in planner.create_local_plan().items:
        name, data = item.index.fqn, item.tensor_data
        if data is not None and (data.chunk.sizes.numel() or not sharded[name].numel()):
            places[name] = {"saved_offsets": list(data.chunk.offsets)}
    return PartPlan(tuple(places), {"DCP_SHARDING_INFO": json.dumps(places), **_LAYOUT})


def layout_of(sharded: Mapping[str, Tensor]) -> list[object]:
    """Return the layout that the plan of a part depends on."""
    return [(name, tensor.shape, getattr(tensor, "placements", None)) for name, tensor in sharded.items()]


class PartPlan(NamedTuple):
    """What a rank saves."""

    names: tuple[str, ...]
    """The tensors of which this rank is the first to hold a part."""
    header: dict[str, str]
    """Header that says where the parts belong."""

    def parts_of(self, sharded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the parts themselves, without copying."""
        return {name: sharded[name].to_local() for name in self.names}  # type: ignore[attr-defined]  # all are DTensors, as is_sharded checked


def _is_first_to_hold(tensor: Tensor) -> bool:
    """Return whether this rank is the first of those that hold the same part; that one saves it."""
    if not isinstance(tensor, DTensor):
        return False
    coordinate = tensor.device_mesh.get_coordinate()
    return coordinate is not None and all(
        place == 0 for place, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate()
    )


def load_sharded(shards: Path, template: Mapping[str, Any] | None) -> dict[str, Tensor]:
    """Load the sharded tensors of a verified checkpoint: sharded like `template`, or whole without it."""
    reader = HuggingFaceStorageReader(str(shards))
    if template is None:
        sizes = reader.read_metadata().state_dict_metadata
        whole = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in sizes.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        with _quiet():
            load(whole, storage_reader=reader, no_dist=True)
        return whole
    _, _, parts = split_state(template)
    parts = {name: part.clone() for name, part in parts.items()}
    with _quiet():
        load(parts, storage_reader=reader)
    return parts


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warnings about its internals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class ShardedSnapshot(NamedTuple):
    """This rank's part of a state in memory, and its target folder. Valid until the next snapshot is taken."""

    step: int
    rank: int
    num_ranks: int
    document: bytes
    tensors: memoryview
    """The tensors that are not sharded."""
    part: memoryview
    place: Storage
    """The target folder, not complete yet."""
    making: contextlib.ExitStack
    """On rank 0: completes the folder when closed, or removes it on failure."""


@final
class ShardSaver:
    """Saves the sharded states of one run. All ranks must make the same calls at the same time."""

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
        """Copy this rank's part, so that later changes do not affect it. A failure on any rank is raised on all."""
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
        """Write a snapshot. Rank 0 completes the checkpoint and returns where it is; the others return None."""
        with snapshot.making:
            _write_part(snapshot)
            if snapshot.rank > 0:
                return None
            fill_checkpoint(snapshot.place, snapshot.document, snapshot.tensors, lambda: _wait_for_parts(snapshot))
        return self._folder.where(snapshot.step)


def _agree(error: str, place: str = "") -> str:
    """Raise on every rank if any has an error; return the place that rank 0 gave."""
    told = ranks.gather([error, place])
    for rank, (failure, _) in enumerate(told):
        if failure:
            raise SondeError("a sharded checkpoint could not be saved", cause=f"rank {rank}: {failure}")
    return str(told[0][1])


def _note(rank: int) -> str:
    return f"part-{rank:05d}"


def _write_part(snapshot: ShardedSnapshot) -> None:
    """Write this rank's file, then a note that it exists or could not be written."""
    name, note, place = f"{SHARD_FOLDER}/{part_name(snapshot.rank)}", _note(snapshot.rank), snapshot.place
    try:
        digest = place.write(name, snapshot.part)
        place.write(f"{note}.json", encode({"name": name, "num_bytes": len(snapshot.part), "sha256": digest}))
    except OSError as error:
        # A full disk may still have room for a file name. If not, rank 0 gives up after a while.
        place.leave(f"{note}{_FAILED}", str(error).encode())
        raise


def _wait_for_parts(snapshot: ShardedSnapshot) -> dict[str, str]:
    """Wait for the files of all ranks and return their digests by name. The notes are removed."""
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
