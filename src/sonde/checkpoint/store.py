"""Training states in a folder of checkpoints: saved atomically, verified on loading, never pickled.

    store = CheckpointStore(run.layout.checkpoints)
    store.save(1000, {"model": model.state_dict(), …})
    step, rejected = store.folder.newest()
    state = store.load(step)

`snapshot` copies a state to memory and returns a function that writes it to disk, possibly in
another thread; `save` does both. A sharded state (FSDP2) is saved by all ranks together, each of
which writes its own part:

    snapshot    on every rank, at the same step: copy this rank's part; rank 0 creates the
                directory, and all agree on it
    write       in any thread: each rank writes its part and tells the others its size and digest;
                rank 0 then adds the rest of the state and the checksums, and gives the
                directory its name

Threads have a process group of their own, so they never interfere with the collectives of training.
If a rank fails to write or dies, all others are told, and nothing appears under the checkpoint's
name.

A `BackgroundSaver` writes in a thread and prunes old checkpoints. Training waits only for the copy,
unless the previous save is still being written: then it waits for that first, so that memory holds
at most one copy of the state. No failure is lost: it appears in the next `finished`, which the
training loop checks at every step. With a sharded state, every rank saves its part this way; rank
0, which completes the checkpoint, reports success, and any rank reports a failure.
"""

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file

from sonde import ranks
from sonde.checkpoint.folder import (
    SHARD_FOLDER,
    STATE_FILE,
    TENSOR_FILE,
    About,
    CheckpointFolder,
    Keep,
    encode_document,
    read_document,
    write_checksums,
    write_files,
)
from sonde.checkpoint.state import (
    TensorImage,
    is_sharded,
    join_state,
    load_sharded,
    own_part,
    part_name,
    split_state,
)
from sonde.errors import DamagedFile, SondeError
from sonde.records.checksums import verify_checksums
from sonde.records.storage import Payload, Storage, storage_at
from sonde.records.worker import Worker

_MARGIN_BYTES = 65536


Write: TypeAlias = Callable[[], Path | str | None]
"""Writes a copied state and returns where it is, or None if another rank completes it. Valid until
the next copy.
"""


class CheckpointStore:
    """Saves and loads the states of one run. `folder` lists, verifies and prunes them.

    ```python
    import torch

    from sonde.checkpoint import CheckpointStore

    model = torch.nn.Linear(3, 2)
    store = CheckpointStore("checkpoints")
    store.save(100, {"model": model.state_dict(), "note": "plain data"})
    assert store.load(100)["note"] == "plain data"
    ```
    """

    def __init__(self, directory: str | os.PathLike[str], *, run_id: str | None = None) -> None:
        """With a `run_id`, pruning ignores the checkpoints of other runs."""
        self.folder = CheckpointFolder(directory, run_id=run_id)
        self._tensors = TensorImage()
        self._part = TensorImage()
        self._chunks: dict[object, Any] = {}
        self._group: Any = None
        """The process group of the threads that write a sharded state."""
        self._space_checked = False

    def save(self, step: int, state: Mapping[str, Any], about: About | None = None) -> Path | str:
        """Save `state` as the checkpoint after `step` updates and return where it is. An existing
        one is replaced.

        A state with sharded tensors must be saved by every rank at the same time; a failure on any
        is raised on all.
        """
        write = self.snapshot(step, state, about)
        with _all_or_none() if is_sharded(state) else nullcontext():
            write()
        return self.folder.where(step)

    def snapshot(self, step: int, state: Mapping[str, Any], about: About | None = None) -> Write:
        """Copy a state to memory, so that later changes do not affect it, and return what writes
        the copy.

        Each rank copies its own shards. The first time, it is checked that there is room on the
        disk.
        """
        about = about or About(run_id=self.folder.run_id)
        if is_sharded(state):
            return self._sharded_snapshot(step, state, about)
        parts = split_state(state)
        document = encode_document(step, parts.document, about)
        tensors = self._tensors.fill(parts.tensors)
        self._check_space(len(document) + len(tensors))
        return partial(self.folder.write, step, document, tensors)

    def _sharded_snapshot(self, step: int, state: Mapping[str, Any], about: About) -> Write:
        """Copy this rank's part. A failure on any rank is raised on all."""
        rank = ranks.rank()
        where = ""
        group = self._group = self._group or dist.new_group(backend="gloo")
        with ExitStack() as making:
            with _all_or_none():
                split = split_state(state)
                part = self._part.fill(*own_part(split.sharded, self._chunks))
                files: dict[str, Payload] = {f"{SHARD_FOLDER}/{part_name(rank)}": part}
                if rank == 0:
                    document = encode_document(step, split.document, about)
                    tensors = self._tensors.fill(split.tensors)
                    files = {STATE_FILE: document, TENSOR_FILE: tensors, **files}
                    self._check_space(len(document) + len(tensors) + ranks.world_size() * len(part))
                    where = str(making.enter_context(self.folder.create(step)).where)
            place = storage_at(ranks.gather(where)[0])
            # on rank 0: gives the folder its name at the end, or removes it on failure
            completing = making.pop_all()

        def write() -> Path | str | None:
            with completing:
                with _all_or_none(group):
                    entries = write_files(place, files)
                of_ranks = ranks.gather(entries, group)
                if rank > 0:
                    return None
                all_entries = dict[str, Any]()
                for of_rank in of_ranks:
                    all_entries |= of_rank
                write_checksums(place, all_entries)
            return self.folder.where(step)

        return write

    def _check_space(self, num_bytes: int) -> None:
        """Raise if there is no room for a checkpoint of this size: asked at the first save alone.
        A limit such as the recorder's `max_bytes` is not known here.
        """
        if not self._space_checked:
            self.folder.storage.check_space(num_bytes + _MARGIN_BYTES)
        self._space_checked = True

    def load(self, step: int, template: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Load and verify the state of a checkpoint.

        Sharded tensors are returned whole, or sharded like those of `template`, a state of the same
        structure; every rank must call this then.
        """
        return read_checkpoint(self.folder.at(step), step, template)[1]


def read_checkpoint(
    storage: Storage, step: int | None = None, template: Mapping[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    """Return the step and the state of the checkpoint in a folder, verified. Raises if it is not
    the one after `step`.
    """
    with storage.local_copy() as path:
        problems = verify_checksums(path)
        if problems:
            raise DamagedFile(
                f"the checkpoint {storage.where} cannot be used", cause="; ".join(problems)
            )
        header = read_document(storage_at(path), step)
        try:
            tensors = load_file(path / TENSOR_FILE)
        except (OSError, SafetensorError) as error:
            raise DamagedFile(
                f"the checkpoint {storage.where} cannot be read", cause=str(error)
            ) from error
        shards = path / SHARD_FOLDER
        parts = load_sharded(shards, template) if shards.is_dir() else {}
        return int(header["step"]), join_state(header["state"], tensors, parts)


@contextmanager
def _all_or_none(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Raise on every rank if the block fails on any of them. All ranks must enter it."""
    error = ""
    try:
        yield
    except Exception as failure:  # noqa: BLE001  the other ranks wait to hear of any error
        error = str(failure) or repr(failure)
    with ranks.missing_ranks_named():
        errors = ranks.gather(error, group)
    for rank, failed in enumerate(errors):
        if failed:
            raise SondeError(
                "a sharded checkpoint could not be saved", cause=f"rank {rank}: {failed}"
            )


class Outcome(NamedTuple):
    """The result of a save."""

    step: int
    path: Path | str
    removed: Collection[int] = ()
    """The steps that were pruned after the save."""
    error: str | None = None
    """Why the save failed; None if it succeeded."""


def _raise_nothing(error: Exception) -> None:
    """Drop an error: `BackgroundSaver` has put it among its outcomes already."""
    del error


class BackgroundSaver:
    """Saves to one store, one checkpoint at a time."""

    def __init__(self, store: CheckpointStore, keep: Keep, protected: Collection[int] = ()) -> None:
        """Pruning never removes steps that are in `protected` at the time."""
        self._protected = protected
        self._store = store
        self.keep = keep
        """What pruning leaves; it may be changed between saves."""
        self._worker = Worker("sonde-checkpoint", on_error=_raise_nothing)
        self.outcomes: deque[Outcome] = deque()
        """The saves that ended and that `finished` has not returned yet."""

    def save(self, step: int, state: Mapping[str, Any], about: About) -> None:
        """Copy the state and start writing it. With a sharded state, every rank copies and writes
        its part.
        """
        self.wait()
        try:
            write = self._store.snapshot(step, state, about)
            self._worker.do(partial(self._write, step, write))
        except (OSError, SondeError) as error:
            self._fail(step, error)

    @property
    def is_busy(self) -> bool:
        """True if a save is still being written."""
        return self._worker.is_busy

    def finished(self) -> list[Outcome]:
        """Return the saves that ended since the last call."""
        return [self.outcomes.popleft() for _ in range(len(self.outcomes))]

    def wait(self) -> None:
        """Wait until nothing is being written."""
        self._worker.flush()

    def close(self) -> None:
        """Wait until nothing is being written, and end the thread."""
        self._worker.close()

    def _write(self, step: int, write: Write) -> None:
        try:
            path = write()
            if path is not None:
                removed = self._store.folder.prune(self.keep, protected=self._protected)
                self.outcomes.append(Outcome(step=step, path=path, removed=removed))
        except Exception as error:  # noqa: BLE001
            # nothing catches errors in a thread: the loop gets them as outcomes
            self._fail(step, error)

    def _fail(self, step: int, error: Exception) -> None:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        self.outcomes.append(Outcome(step=step, path=self._store.folder.where(step), error=text))
