"""Tensors that ranks hold in parts (FSDP2), through `torch.distributed.checkpoint`, each rank writing its own.

The parts are safetensors files with their place in a JSON header, torch's own layout for it: nothing is pickled, so nothing that is
read can run. The files are inside a checkpoint like any other: verified by its manifest before torch touches them, and named by one
rename once every rank's are there. Loading may use another number of ranks, or one process without any.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
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
from sonde.errors import SondeError
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
    """Save a state whose sharded tensors live on all ranks. Every rank must call it; a failure on any is raised on all."""
    document, tensors, sharded = split_state(state)
    path = folder.path(step)
    with contextlib.ExitStack() as stack:
        target = _agreed(lambda: str(stack.enter_context(_new_checkpoint(folder, step))))
        shards = Path(target) / SHARD_FOLDER
        writer = HuggingFaceStorageWriter(path=str(shards), save_distributed=True)
        try:
            with _quiet():
                save(dict(sharded), storage_writer=writer)
        except CheckpointException as error:  # raised on every rank, and not an Exception
            raise SondeError(f"the parts of {path.name} could not be saved", cause=str(error)) from error

        def complete() -> str:
            write_new(shards.parent / TENSOR_FILE, TensorImage().fill(tensors))
            write_new(shards.parent / STATE_FILE, encode_document(step, document, about))
            write_checksums(shards.parent)
            stack.close()
            return str(folder.path(step))

        return Path(_agreed(complete))


@contextlib.contextmanager
def _new_checkpoint(folder: CheckpointFolder, step: int) -> Iterator[Path]:
    with folder.room_for(step) as path, atomic_directory(path) as temporary:
        yield temporary


def _agreed(act: Callable[[], str]) -> str:
    """What `act` gives on rank 0, told to all ranks; when it fails there, all raise."""
    told: list[str | None] = [None, None]
    if dist.get_rank() == 0:
        try:
            told[0] = act()
        except OSError as error:
            told[1] = str(error)
    dist.broadcast_object_list(told)
    if told[0] is None:
        raise SondeError("a sharded checkpoint could not be saved", cause=told[1])
    return told[0]


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
