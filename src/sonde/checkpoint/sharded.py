"""Tensors that ranks hold in parts (FSDP2): what they are, this rank's part as a file, and reading them back.

The parts are safetensors files with their place in a JSON header, in the layout of `torch.distributed.checkpoint`, whose plan says what a
rank holds and which reads them: nothing is pickled, so nothing that is read can run. The files are inside a checkpoint like any other:
verified by its manifest before torch touches them. Loading may use another number of ranks, or one process without any.
"""

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from sonde.checkpoint.state import split_state

_LAYOUT: Final = {"DCP_VERSION": "1.0", "format": "pt"}
"""How torch marks such a file."""


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
