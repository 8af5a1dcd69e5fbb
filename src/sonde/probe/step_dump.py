"""One step of one process on disk: its folder, the record stream, the full tensors, and debug.json
when the step ends.

Records are buffered until there are FLUSH_RECORDS of them or FLUSH_SECONDS have passed (a kill
loses at most those), then written to probe.jsonl in one write. `complete` writes debug.json;
gradients that arrive later are appended, and debug.json is rewritten. Memory is bounded: past
KEEP_RECORDS the document is folded from the stream instead. No error here propagates into the
training step.

The folder is dump_path/step{N}/rank{R}/. The rank comes from torch.distributed once it is
initialized, otherwise from RANK (torchrun) or RANK_ID (msrun). A process to which none of these
gave a rank counts as rank 0 and writes to `rank`, as in msprobe up to 8.3, or to what the setting
`folder` says. A process writes to `proc{PID}` (msprobe's name) if it is a child that does not know
its rank yet, or if another living process holds its rank in the same dump_path. The folder is
renamed as soon as the rank is known and free. So no neighbor, fork or later init ever overwrites
anything.
"""

import contextlib
import logging
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from sonde.errors import RunError, SondeError
from sonde.probe import dump
from sonde.probe.settings import PROCESS, TENSOR, UNNUMBERED, ProbeSettings
from sonde.probe.walk import Framework, Later
from sonde.records import disk
from sonde.records.append import RecordFile
from sonde.records.lock import RunLock
from sonde.records.reader import read_records

FLUSH_RECORDS: Final = 256
FLUSH_SECONDS: Final = 1.0
KEEP_RECORDS: Final = 20_000

Observer: TypeAlias = Callable[[dict[str, Any], int], list[dict[str, Any]]]
"""Takes a record with all its numbers and its step; returns records to add."""

_logger = logging.getLogger("sonde")


class Rank(NamedTuple):
    """The rank of this process, and whether it is certain."""

    number: int
    is_certain: bool
    is_numbered: bool = True
    """True if a launcher or torch.distributed assigned the number."""


def joined() -> Any:
    """Return torch.distributed if this process has joined a group; otherwise None."""
    distributed = sys.modules.get("torch.distributed")
    is_up = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_up else None


def prepare_folder(directory: Path) -> None:
    """Create a folder, or remove what an earlier run of the probe left in it; other files are
    kept.
    """
    try:
        disk.make_directories(directory.parent)
        if directory.is_symlink():  # sonde up to 0.2 made `rank` a link to `rank0`
            disk.unlink(directory)
        disk.mkdir(directory)
    except FileExistsError:
        for name in (dump.STREAM, dump.DOCUMENT):
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(directory / name)
        shutil.rmtree(directory / dump.TENSOR_FOLDER, ignore_errors=True)


def move_folder(before: Path, after: Path) -> bool:
    """Rename a step's folder once the rank is known, replacing what an earlier run left under the
    new name.
    """
    try:
        prepare_folder(after)
        disk.rmdir(after)
        disk.replace(before, after)
    except OSError:
        return False  # the target holds files that are not ours: keep the current folder
    return True


class Seat:
    """This process's place among the writers to the same dump_path, held from the first record
    until `release`.
    """

    def __init__(self, dump_path: Path, owner_pid: int, unnumbered: str = UNNUMBERED) -> None:
        """`unnumbered` is the folder's name while nothing has given this process a rank."""
        self._dump_path = dump_path
        self._unnumbered = unnumbered
        self.is_fork = os.getpid() != owner_pid
        """Whether this process was forked from the one that made the debugger."""
        self._lock: RunLock | None = None
        self._taken = -1

    def rank(self) -> Rank:
        """Return this process's rank, as far as it is known now."""
        distributed = joined()
        if distributed is not None:
            return Rank(int(distributed.get_rank()), True)
        for name in ("RANK", "RANK_ID"):
            text = os.environ.get(name, "")
            if text.isdecimal():
                return Rank(int(text), not self.is_fork)
        return Rank(
            0, not self.is_fork and multiprocessing.parent_process() is None, is_numbered=False
        )

    def folder_name(self) -> str:
        """Return the name of this process's folders, as far as it is known now."""
        rank = self.rank()
        if rank.is_certain and rank.number != self._taken:
            try:
                lock = RunLock(self._dump_path / f"rank{rank.number}.lock.json")
            except RunError:
                return f"proc{os.getpid()}"
            self.release()
            self._lock = lock
            self._taken = rank.number
        if not rank.is_certain or (self._unnumbered == PROCESS and not rank.is_numbered):
            return f"proc{os.getpid()}"
        return f"rank{self._taken}" if rank.is_numbered else self._unnumbered

    def release(self) -> None:
        """Release the rank so that another process can take it."""
        if self._lock is not None:
            self._lock.release()
        self._lock = None
        self._taken = -1


class StepDump:
    """The records of one step. Thread-safe; used by one process."""

    def __init__(
        self, settings: ProbeSettings, step: int, seat: Seat, observers: Sequence[Observer]
    ) -> None:
        """`observers` are called with every record in call order; the records they return are
        recorded too.
        """
        self.step = step
        self._is_dirty = False
        """True if records have arrived, or the folder was moved, since debug.json was last
        written.
        """
        self._observers = observers
        self.hooks: list[tuple[Any, Any]] = []
        """The hooks on values saved in this step, each with its `fired`: whether a gradient has
        arrived.
        """
        self._settings = settings
        self._seat = seat
        # A forked child may exit without cleanup (os._exit), so it buffers nothing.
        self._flush_records = 1 if seat.is_fork else FLUSH_RECORDS
        self._lock = threading.RLock()
        self._pending: list[tuple[dict[str, Any], Sequence[Later]]] = []
        self._kept: list[dict[str, Any]] | None = []
        self._next_flush = time.monotonic() + FLUSH_SECONDS
        self._folder: Path | None = None
        self._stream: RecordFile | None = None
        self._failed = False

    def add(self, record: dict[str, Any], laters: Sequence[Later] = ()) -> None:
        """Add a record; `laters` fill in numbers that a device is still computing."""
        with self._lock:
            self._pending.append((record, laters))
            if len(self._pending) >= self._flush_records or time.monotonic() > self._next_flush:
                self.flush()

    def write_tensor(self, framework: Framework, tensor: Any, name: str) -> bool:
        """Write a whole tensor now. It appears under its name only once it is complete."""
        with self._lock:
            if not self._open():
                return False
            assert self._folder is not None
            folder = self._folder / dump.TENSOR_FOLDER
        temporary = folder / f".{name}"
        try:
            if not framework.write(tensor, temporary):
                return False
            disk.replace(temporary, folder / name)
        except OSError as error:
            self._report(error)
            return False
        return True

    def flush(self) -> None:
        """Write the buffered records."""
        with self._lock:
            pending = self._pending
            self._pending = []
            self._next_flush = time.monotonic() + FLUSH_SECONDS
            if not pending:
                return
            records = [_filled_in(record, laters) for record, laters in pending]
            found = [
                observe(record, self.step) for record in records for observe in self._observers
            ]
            records += [note for notes in found for note in notes]
            self._is_dirty = True
            if not self._open():
                return
            assert self._stream is not None
            self._stream.append_many(records)
            if self._kept is not None and len(self._kept) + len(records) <= KEEP_RECORDS:
                self._kept += records
            else:
                self._kept = None

    def complete(self) -> None:
        """Write the buffered records and debug.json. May be called again after more records."""
        with self._lock:
            self.flush()
            if self._folder is None:
                return
            try:
                self._settle()
                if not self._is_dirty:
                    return
                self._is_dirty = False
                records = (
                    read_records(self._folder / dump.STREAM) if self._kept is None else self._kept
                )
                # few records come later: the document is then folded from the stream
                self._kept = None
                self._write_document(dump.document_bytes(dump.fold(records)))
            except (OSError, SondeError) as error:
                self._report(error)

    def remove_hooks(self, *, only_fired: bool = False) -> None:
        """Remove the hooks, or those whose gradient has arrived."""
        hooks = self.hooks
        self.hooks = [hook for hook in self.hooks if only_fired and not hook[1].fired]
        for handle, gradients in hooks:
            if gradients.fired or not only_fired:
                handle.remove()

    def close(self) -> None:
        """Remove the hooks, complete the step and do not open it again."""
        with self._lock:
            self.remove_hooks()
            self.complete()
            if self._stream is not None:
                self._stream.close()
                self._stream = None
            self._failed = True

    def _open(self) -> bool:
        if self._stream is not None:
            return True
        if self._failed:
            return False
        try:
            folder = self._settings.dump_path / f"step{self.step}" / self._seat.folder_name()
            prepare_folder(folder)
            if self._settings.task == TENSOR:
                disk.mkdir(folder / dump.TENSOR_FOLDER)
            self._begin(folder)
        except (OSError, SondeError) as error:
            self._report(error)
            self._failed = True
            return False
        return True

    def _begin(self, folder: Path) -> None:
        """Open the stream in `folder` and write its header."""
        self._folder = folder
        self._stream = RecordFile(folder / dump.STREAM)
        header = {
            "type": dump.DUMP,
            "format": dump.FORMAT,
            "task": self._settings.task,
            "level": self._settings.level,
            "step": self.step,
            "rank": self._seat.rank().number,
            "pid": os.getpid(),
            "time": time.time(),
        }
        if self._settings.task == TENSOR:
            header["dump_data_dir"] = str(folder / dump.TENSOR_FOLDER)
        self._stream.append(header)
        if self._kept is not None:
            self._kept.append(header)

    def _settle(self) -> None:
        """Move to the rank's folder once the rank is known, and continue the stream there."""
        assert self._folder is not None
        folder = self._folder.with_name(self._seat.folder_name())
        if folder != self._folder and move_folder(self._folder, folder):
            if self._stream is not None:
                self._stream.close()
            self._begin(folder)
            self._is_dirty = True

    def _write_document(self, document: bytes) -> None:
        """Write debug.json atomically; it is not synced, because the stream can always rebuild
        it.
        """
        assert self._folder is not None
        temporary = self._folder / f".{dump.DOCUMENT}"
        descriptor = disk.open_file(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
        )
        try:
            disk.write_all(descriptor, document)
        finally:
            disk.close(descriptor)
        disk.replace(temporary, self._folder / dump.DOCUMENT)

    def _report(self, error: Exception) -> None:
        if not self._failed:
            _logger.warning(
                "the probe cannot write step %d: %s. Training goes on", self.step, error
            )


def _filled_in(record: dict[str, Any], laters: Sequence[Later]) -> dict[str, Any]:
    for later in laters:
        try:
            later()
        except Exception as error:  # noqa: BLE001
            # a failed device must not prevent writing the rest
            record["error"] = f"{type(error).__name__}: {error}"[:500]
    return record
