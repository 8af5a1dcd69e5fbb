"""Training states in a folder of checkpoints: saved atomically, verified on loading, never pickled.

    store = CheckpointStore(run.layout.checkpoints)
    store.save(1000, {"model": model.state_dict(), …})
    step, rejected = store.folder.newest()
    state = store.load(step)

`snapshot` copies a state to memory, and `write` writes it to disk, possibly in another thread (background.py); `save`
does both. A sharded state (FSDP2) is saved by all ranks together (sharded.py).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors import SafetensorError
from safetensors.torch import load_file

from sonde.checkpoint.folder import SHARD_FOLDER, TENSOR_FILE, About, CheckpointFolder, encode_document, read_document
from sonde.checkpoint.sharded import ShardedSnapshot, ShardSaver, is_sharded, load_sharded
from sonde.checkpoint.state import join_state, split_state
from sonde.checkpoint.tensor_image import TensorImage
from sonde.errors import DamagedFile
from sonde.records.checksums import verify_checksums
from sonde.records.storage import Storage, storage_at


class Snapshot(NamedTuple):
    """A state in memory, as the bytes of a checkpoint's files. Valid until the next snapshot is taken."""

    step: int
    document: bytes
    tensors: memoryview

    @property
    def num_bytes(self) -> int:
        """Space needed on disk, with a small margin."""
        return len(self.document) + len(self.tensors) + 65536


@final
class CheckpointStore:
    """Saves and loads the states of one run. `folder` lists, verifies and prunes them."""

    def __init__(self, directory: str | Path, *, run_id: str | None = None) -> None:
        """With a `run_id`, pruning ignores the checkpoints of other runs."""
        self.folder = CheckpointFolder(directory, run_id=run_id)
        self._image = TensorImage()
        self._shards = ShardSaver(self.folder)

    @property
    def directory(self) -> Path | str:
        """Where the checkpoints are."""
        return self.folder.directory

    def save(self, step: int, state: Mapping[str, Any], about: About | None = None) -> Path | str:
        """Save `state` as the checkpoint after `step` updates and return where it is. An existing one is replaced.

        A state with sharded tensors must be saved by every rank at the same time.
        """
        if is_sharded(state):
            return self._shards.save(step, state, about or About(run_id=self.folder.run_id))
        path = self.write(self.snapshot(step, state, about))
        assert path is not None
        return path

    def snapshot(self, step: int, state: Mapping[str, Any], about: About | None = None) -> Snapshot | ShardedSnapshot:
        """Copy a state to memory, so that later changes do not affect it; each rank copies its own shards."""
        if is_sharded(state):
            return self._shards.snapshot(step, state, about or About(run_id=self.folder.run_id))
        document, tensors, _ = split_state(state)
        encoded = encode_document(step, document, about or About(run_id=self.folder.run_id))
        return Snapshot(step=step, document=encoded, tensors=self._image.fill(tensors))

    def write(self, snapshot: Snapshot | ShardedSnapshot) -> Path | str | None:
        """Write a snapshot and return where it is, or None if another rank completes it."""
        if isinstance(snapshot, ShardedSnapshot):
            return self._shards.write(snapshot)
        return self.folder.write(snapshot.step, snapshot.document, snapshot.tensors)

    def load(self, step: int, template: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Load and verify the state of a checkpoint.

        Sharded tensors are returned whole, or sharded like those of `template`, a state of the same structure; every
        rank must call this then.
        """
        header, state = read_checkpoint(self.folder.at(step), template)
        if header.get("step") != step:
            raise DamagedFile(f"{self.folder.at(step).where} is not the state after {step} updates")
        return state


def read_checkpoint(
    storage: Storage, template: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the state of the checkpoint in a folder, verified."""
    with storage.local_copy() as path:
        problems = verify_checksums(path)
        if problems:
            raise DamagedFile(f"the checkpoint {storage.where} cannot be used", cause="; ".join(problems))
        header = read_document(storage_at(path))
        try:
            tensors = load_file(path / TENSOR_FILE)
        except (OSError, SafetensorError) as error:
            raise DamagedFile(f"the checkpoint {storage.where} cannot be read", cause=str(error)) from error
        shards = path / SHARD_FOLDER
        return header, join_state(header["state"], tensors, load_sharded(shards, template) if shards.is_dir() else {})
