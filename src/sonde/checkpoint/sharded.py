"""Sharded tensors (FSDP2): which they are, this rank's part as a file, and loading them back.

The parts are safetensors files with their position in a JSON header, in the layout of `torch.distributed.checkpoint`,
which also plans what each rank saves and reads the files. Nothing is pickled, so loading cannot run code. The files are
part of the checkpoint and are verified by its checksums before torch reads them. A checkpoint can be loaded with
another number of ranks, or in a single process.

When saving (store.py), every rank copies its own part and writes it while training continues.

    snapshot    on every rank, at the same step: copy this rank's part; rank 0 creates the directory, and all agree on it
    write       in any thread: each rank writes its part and tells the others its size and digest; rank 0 then adds the
                rest of the state and the checksums, and gives the directory its name

Threads have a process group of their own, so they never interfere with the collectives of training. If a rank fails to
write or dies, all others are told, and nothing appears under the checkpoint's name.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.distributed_c10d import ProcessGroup
from torch.distributed.tensor import DTensor

from sonde import ranks
from sonde.checkpoint.folder import SHARD_FOLDER
from sonde.checkpoint.state import split_state
from sonde.errors import SondeError
from sonde.records.storage import Storage

_LAYOUT: Final = {"DCP_VERSION": "1.0", "format": "pt"}
"""The metadata with which torch marks such a file."""


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


def own_part(sharded: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return what this rank saves of sharded tensors, not copied, and the header that says where it belongs.

    Of the ranks that hold the same values, only the first saves them.
    """
    parts, places = {}, {}
    for name, tensor in sharded.items():
        assert isinstance(tensor, DTensor)
        at = zip(tensor.device_mesh.get_coordinate() or (), tensor.placements, strict=False)
        if any(coordinate for coordinate, placement in at if placement.is_replicate()):
            continue
        (chunk,) = tensor.__create_chunk_list__()  # how torch's own checkpoints ask a tensor where its part belongs
        if chunk.sizes.numel() or not tensor.numel():
            parts[name] = tensor.to_local()
            places[name] = {"saved_offsets": list(chunk.offsets)}
    return parts, {"DCP_SHARDING_INFO": json.dumps(places), **_LAYOUT}


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


def agree(error: str, told: object = None, group: ProcessGroup | None = None) -> list[Any]:
    """Raise on every rank if any has an error; return what each rank tells."""
    answers = ranks.gather([error, told], group)
    for rank, (failure, _) in enumerate(answers):
        if failure:
            raise SondeError("a sharded checkpoint could not be saved", cause=f"rank {rank}: {failure}")
    return [answer for _, answer in answers]


def write_parts(place: Storage, part: memoryview, group: ProcessGroup) -> dict[str, dict[str, object]]:
    """Write this rank's file and wait for the others; return size and digest of each file. All ranks call this."""
    error, digest = "", ""
    try:
        digest = place.write(f"{SHARD_FOLDER}/{part_name(group.rank())}", part)
    except Exception as failure:  # noqa: BLE001  whatever it is, the other ranks wait to be told
        error = str(failure)
    with ranks.missing_ranks_named():
        entries = agree(error, {"num_bytes": len(part), "sha256": digest}, group)
    return {f"{SHARD_FOLDER}/{part_name(rank)}": entry for rank, entry in enumerate(entries)}
