"""Background saving: the state is copied to memory, and a thread writes it to disk and prunes old checkpoints.

Training waits only for the copy, unless the previous save is still being written: then it waits for that first, so that
memory holds at most one copy of the state. No failure is lost: it appears in the next `finished`, which the training
loop checks at every step. With a sharded state, every rank saves its part this way; rank 0, which completes the
checkpoint, reports success, and any rank reports a failure.
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
    """The result of a save."""

    step: int
    path: Path | str
    removed: Collection[int] = ()
    """The steps that were pruned after the save."""
    error: str | None = None
    """Why the save failed; None if it succeeded."""


@final
class BackgroundSaver:
    """Saves to one store, one checkpoint at a time."""

    def __init__(self, store: CheckpointStore, keep: Keep, protected: Collection[int] = ()) -> None:
        """Pruning never removes steps that are in `protected` at the time."""
        self._protected = protected
        self._store = store
        self._keep = keep
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="sonde-checkpoint"
        )  # kept, because starting a new one takes a while on a busy machine
        self._writing: Future[None] | None = None
        self._outcomes: list[Outcome] = []
        self._space_checked = False

    def save(self, step: int, state: Mapping[str, Any], about: About) -> None:
        """Copy the state and start writing it. With a sharded state, every rank copies and writes its part."""
        self.wait()
        try:
            snapshot = self._store.snapshot(step, state, about)
            if (
                isinstance(snapshot, Snapshot) and not self._space_checked
            ):  # for a sharded state this was already checked
                self._store.folder.storage.check_space(snapshot.num_bytes)
                self._space_checked = True
        except (OSError, SondeError) as error:
            self._outcomes.append(self._failure(step, error))
            return
        self._writing = self._thread.submit(self._write, snapshot)

    @property
    def is_busy(self) -> bool:
        """True if a save is still being written."""
        return self._writing is not None and not self._writing.done()

    def finished(self) -> list[Outcome]:
        """Return the saves that ended since the last call."""
        if self.is_busy:
            return []
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._writing is not None:
            self._writing.result()

    def _write(self, snapshot: Snapshot | ShardedSnapshot) -> None:
        try:
            path = self._store.write(snapshot)
            if path is not None:
                removed = self._store.folder.prune(self._keep, protected=self._protected)
                self._outcomes.append(Outcome(step=snapshot.step, path=path, removed=removed))
        except Exception as error:  # noqa: BLE001  nothing catches errors in a thread: the loop gets them as outcomes
            self._outcomes.append(self._failure(snapshot.step, error))

    def _failure(self, step: int, error: Exception) -> Outcome:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(step=step, path=self._store.folder.where(step), error=text)
