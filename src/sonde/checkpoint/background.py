"""Saving while training goes on: the state is copied to memory, and a thread brings it to the disk and prunes.

Training waits for the copy alone, unless the save before is still being written: then it waits for that one first, so that memory holds one
copy of the state and no more. A failure is never lost: it is in the next `finished`, which the training loop asks at every step. Of a
sharded state every rank saves its part in this way; rank 0, which completes it, tells of its success, and any rank of a failure.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, final

from sonde.checkpoint.folder import About, Keep
from sonde.checkpoint.sharded import ShardedSnapshot
from sonde.checkpoint.store import CheckpointStore, Snapshot
from sonde.errors import SondeError


class Outcome(NamedTuple):
    """How a save ended."""

    step: int
    path: Path | str
    removed: Collection[int] = ()
    """The steps that were pruned after it."""
    error: str | None = None
    """Why there is no such checkpoint; None when there is."""


@final
class BackgroundSaver:
    """Saves to one store, one checkpoint at a time."""

    def __init__(self, store: CheckpointStore, keep: Keep, protected: Collection[int] = ()) -> None:
        """Pruning never removes a step that is `protected` at the time."""
        self._protected = protected
        self._store = store
        self._keep = keep
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="sonde-checkpoint"
        )  # kept: to begin a new one takes a while on a busy machine
        self._writing: Future[None] | None = None
        self._outcomes: list[Outcome] = []
        self._space_checked = False

    def save(self, step: int, state: Mapping[str, Any], about: About) -> None:
        """Copy the state and begin to write it. Of a sharded one every rank copies and writes its part."""
        self.wait()
        try:
            snapshot = self._store.snapshot(step, state, about)
            if isinstance(snapshot, Snapshot) and not self._space_checked:  # of a sharded one it has been checked
                self._store.folder.storage.check_space(snapshot.num_bytes)
                self._space_checked = True
        except (OSError, SondeError) as error:
            self._outcomes.append(self._failure(step, error))
            return
        self._writing = self._thread.submit(self._write, snapshot)

    @property
    def is_busy(self) -> bool:
        """Is a save still being written?"""
        return self._writing is not None and not self._writing.done()

    def finished(self) -> list[Outcome]:
        """The saves that ended since this was last asked."""
        if self.is_busy:
            return []
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._writing is not None:
            self._writing.result()

    def _write(self, snapshot: Snapshot | ShardedSnapshot) -> None:
        try:
            path = self._store.write(snapshot)
            if path is not None:
                removed = self._store.folder.prune(self._keep, protected=self._protected)
                self._outcomes.append(Outcome(step=snapshot.step, path=path, removed=removed))
        except Exception as error:  # noqa: BLE001  a thread has nobody to raise to: the loop is told
            self._outcomes.append(self._failure(snapshot.step, error))

    def _failure(self, step: int, error: Exception) -> Outcome:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(step=step, path=self._store.folder.where(step), error=text)
