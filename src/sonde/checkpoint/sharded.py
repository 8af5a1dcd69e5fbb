"""Tensors that ranks hold in parts (FSDP2), through `torch.distributed.checkpoint`, each rank writing its own.

The parts are safetensors files with their place in a JSON header, torch's own layout for it: nothing is pickled, so nothing that is
read can run. The files are inside a checkpoint like any other: verified by its manifest before torch touches them, and named by one
rename once every rank's are there. Loading may use another number of ranks, or one process without any.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from sonde.checkpoint.folder import (
    SHARD_FOLDER,
    STATE_FILE,
    TENSOR_FILE,
    CheckpointFolder,
    encode_document,
    write_new,
)
from sonde.checkpoint.retention import About
from sonde.checkpoint.state import split_state
from sonde.checkpoint.tensor_image import TensorImage
from sonde.records.atomic import atomic_directory
from sonde.records.checksums import write_checksums


def is_sharded(state: object) -> bool:
    """Does a state hold tensors that are spread over ranks?"""
    if isinstance(state, Mapping):
        return any(is_sharded(value) for value in state.values())
    if isinstance(state, (list, tuple)):
        return any(is_sharded(value) for value in state)
    return isinstance(state, DTensor)


def save_sharded(folder: CheckpointFolder, step: int, state: Mapping[str, Any], about: About) -> Path:
    """Save a state whose sharded tensors live on all ranks; every rank must call it, and learns of a failure on any."""
    document, tensors, sharded = split_state(state)
    path = folder.path(step)
    with contextlib.ExitStack() as stack:
        target: list[str | None] = [None]
        if dist.get_rank() == 0:
            path = stack.enter_context(folder.room_for(step))
            target[0] = str(stack.enter_context(atomic_directory(path)))
        dist.broadcast_object_list(target)
        assert target[0] is not None
        shards = Path(target[0]) / SHARD_FOLDER
        with _quiet():
            save(
                dict(sharded),
                storage_writer=HuggingFaceStorageWriter(path=str(shards), save_distributed=True),
            )
        if dist.get_rank() == 0:
            write_new(shards.parent / TENSOR_FILE, TensorImage().fill(tensors))
            write_new(shards.parent / STATE_FILE, encode_document(step, document, about))
            write_checksums(shards.parent)
    dist.barrier()
    return path


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
