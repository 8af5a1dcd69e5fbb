"""Sharded tensors (FSDP2): which they are, this rank's part as a file, and loading them back.

The parts are safetensors files with their position in a JSON header, in the layout of `torch.distributed.checkpoint`,
which also plans what each rank saves and reads the files. Nothing is pickled, so loading cannot run code. The files are
part of the checkpoint and are verified by its checksums before torch reads them. A checkpoint can be loaded with
another number of ranks, or in a single process.

When saving (store.py), every rank copies its own part and writes it while training continues.

    snapshot    on every rank, at the same step: copy this rank's part; rank 0 creates the directory, and all agree on it
    write       in any thread: each rank writes its part and a note with its size and digest; rank 0 waits for all notes,
                adds the rest of the state and the checksums, and gives the directory its name

Only `snapshot` and `save` use the process group. `write` communicates through the folder alone, so a thread never
interferes with the collectives of training. A rank that fails says so in its note. A rank that died writes nothing, and
rank 0 gives up after a minute without progress. In both cases nothing appears under the checkpoint's name.
"""

import json
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from sonde import ranks
from sonde.checkpoint.folder import SHARD_FOLDER
from sonde.checkpoint.state import split_state
from sonde.errors import SondeError
from sonde.records.storage import Storage
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


def plan_part(sharded: Mapping[str, Tensor]) -> tuple[list[str], dict[str, str]]:
    """Plan what this rank saves of sharded tensors, from their shapes, without communication; 0.4 ms per tensor.

    Returns the tensors of which it is the first to hold a part, and the header that says where the parts belong.
    """
    planner = DefaultSavePlanner()
    planner.set_up_planner({name: tensor for name, tensor in sharded.items() if _is_first_to_hold(tensor)})
    places = {}
    for item in planner.create_local_plan().items:
        name, data = item.index.fqn, item.tensor_data
        if data is not None and (data.chunk.sizes.numel() or not sharded[name].numel()):
            places[name] = {"saved_offsets": list(data.chunk.offsets)}
    return list(places), {"DCP_SHARDING_INFO": json.dumps(places), **_LAYOUT}


def part_of(sharded: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return this rank's parts of some tensors, without copying."""
    return {name: sharded[name].to_local() for name in names}  # type: ignore[attr-defined]  # all are DTensors, as is_sharded checked


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
        parts = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in reader.read_metadata().state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
    else:
        parts = {name: part.clone() for name, part in split_state(template).sharded.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about its internals
        load(parts, storage_reader=reader, no_dist=template is None)
    return parts


def agree(error: str, place: str = "") -> str:
    """Raise on every rank if any has an error; return the place that rank 0 gave."""
    told = ranks.gather([error, place])
    for rank, (failure, _) in enumerate(told):
        if failure:
            raise SondeError("a sharded checkpoint could not be saved", cause=f"rank {rank}: {failure}")
    return str(told[0][1])


def write_part(place: Storage, rank: int, part: memoryview) -> None:
    """Write a rank's file, then a note that it exists or could not be written."""
    name, note = f"{SHARD_FOLDER}/{part_name(rank)}", f"part-{rank:05d}"
    try:
        digest = place.write(name, part)
        place.write(f"{note}.json", encode({"name": name, "num_bytes": len(part), "sha256": digest}))
    except OSError as error:
        # A full disk may still have room for a file name. If not, rank 0 gives up after a while.
        place.leave(f"{note}{_FAILED}", str(error).encode())
        raise


def wait_for_parts(place: Storage, num_ranks: int) -> dict[str, str]:
    """Wait for the files of all ranks and return their digests by name. The notes are removed."""
    waiting = [f"part-{rank:05d}" for rank in range(num_ranks)]
    patience = _PATIENCE_SECONDS * (1 if place.is_local else 30)
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
            known, patient_until = sizes, time.monotonic() + patience
        if time.monotonic() > patient_until:
            raise SondeError(
                f"{waiting[0]} of the checkpoint was not written", cause=f"nothing came for {patience:g} seconds"
            )
        time.sleep(_POLL_SECONDS if place.is_local else 1.0)
    return digests
