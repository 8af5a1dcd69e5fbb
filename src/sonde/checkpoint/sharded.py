"""Tensors that ranks hold in parts (FSDP2): what they are, this rank's part as a file, and reading them back.

The parts are safetensors files with their place in a JSON header, in the layout of `torch.distributed.checkpoint`, whose plan says what a
rank holds and which reads them: nothing is pickled, so nothing that is read can run. The files are inside a checkpoint like any other:
verified by its manifest before torch touches them. Loading may use another number of ranks, or one process without any.

Of a save, every rank copies its own, and writes it while training goes on.

    snapshot    on every rank, at the same step: copy this rank's part; rank 0 makes the directory, and all agree on it
    write       in any thread: each rank writes its part and a note of its size and digest beside it; rank 0 waits for the notes of all,
                adds the rest of the state and the manifest, and gives the directory its name

Only `snapshot` and `save` talk to other ranks through the process group; `write` does through the folder alone, so that a thread never
meets the collectives of training. A rank that fails says so in its note; one that is gone writes nothing, and after a minute of that rank 0
gives up. Either way nothing appears under the checkpoint's name.
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
"""How torch marks such a file."""
_PATIENCE_SECONDS: Final = 60.0
"""Parts that have not grown for so long never will; below a URL nobody sees them grow, and they get 30 times as long."""
_POLL_SECONDS: Final = 0.02
_FAILED: Final = ".failed"
"""How the note of a part ends that could not be written."""


def is_sharded(state: object) -> bool:
    """Does a state hold tensors that are spread over ranks?"""
    if isinstance(state, Mapping):
        return any(is_sharded(value) for value in state.values())
    if isinstance(state, (list, tuple)):
        return any(is_sharded(value) for value in state)
    return isinstance(state, DTensor)


def part_name(rank: int) -> str:
    """The name of a rank's file, as torch has it."""
    return f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"


def plan_part(sharded: Mapping[str, Tensor]) -> "PartPlan":
    """What this rank saves of sharded tensors. Talks to nobody, and follows from their shapes alone; 0.4 ms a tensor."""
    planner = DefaultSavePlanner()
    planner.set_up_planner({name: tensor for name, tensor in sharded.items() if _is_first_to_hold(tensor)})
    places = {}
    for item in planner.create_local_plan().items:
        name, data = item.index.fqn, item.tensor_data
        if data is not None and (data.chunk.sizes.numel() or not sharded[name].numel()):
            places[name] = {"saved_offsets": list(data.chunk.offsets)}
    return PartPlan(tuple(places), {"DCP_SHARDING_INFO": json.dumps(places), **_LAYOUT})


def layout_of(sharded: Mapping[str, Tensor]) -> list[object]:
    """What the plan of a part follows from."""
    return [(name, tensor.shape, getattr(tensor, "placements", None)) for name, tensor in sharded.items()]


class PartPlan(NamedTuple):
    """What a rank saves."""

    names: tuple[str, ...]
    """The tensors that it holds a part of, and is the first to hold that."""
    header: dict[str, str]
    """Where the parts belong."""

    def parts_of(self, sharded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parts themselves, not copied."""
        return {name: sharded[name].to_local() for name in self.names}  # type: ignore[attr-defined]  # a DTensor each: is_sharded asked


def _is_first_to_hold(tensor: Tensor) -> bool:
    """Of ranks that hold the same part, the first saves it."""
    if not isinstance(tensor, DTensor):
        return False
    coordinate = tensor.device_mesh.get_coordinate()
    return coordinate is not None and all(
        place == 0 for place, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate()
    )


def load_sharded(shards: Path, template: Mapping[str, Any] | None) -> dict[str, Tensor]:
    """The sharded tensors of a verified checkpoint: parts like those of `template`, or whole ones without it."""
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
    """Without the warnings that torch gives of its own inner workings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class ShardedSnapshot(NamedTuple):
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
