"""Where a process writes: dump_path/step{N}/rank{R}/, and which rank it is.

The rank is that of torch.distributed once it is initialised, else RANK (torchrun) or RANK_ID (msrun); a process that nobody
numbered is rank 0. A child process that does not know its rank yet, and one that finds a living process in its place,
writes into `proc{PID}` (msprobe's name for it); as soon as the rank is known the folder is renamed. So nothing is ever
written over by a neighbour, a fork or a later init.
"""

import contextlib
import multiprocessing
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sonde.errors import RunError
from sonde.probe.dump_format import DOCUMENT, STREAM, TENSOR_FOLDER
from sonde.records import disk
from sonde.records.lock import RunLock

_LOCK = "lock.json"


@final
@dataclass(frozen=True, slots=True)
class Rank:
    """This process's number, and whether it may still turn out to be another."""

    number: int
    is_certain: bool


def current_rank(owner_pid: int) -> Rank:
    """The rank of this process; `owner_pid` is the process that made the probe (another one after a fork)."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(int(distributed.get_rank()), True)
    for name in ("RANK", "RANK_ID"):
        text = os.environ.get(name, "")
        if text.isdecimal():
            return Rank(int(text), os.getpid() == owner_pid)
    is_child = multiprocessing.parent_process() is not None or os.getpid() != owner_pid
    return Rank(0, not is_child)


@final
class Place:
    """One step's folder for this process, held while it is written."""

    def __init__(self, step_folder: Path, rank: Rank) -> None:
        self._step_folder = step_folder
        self._lock: RunLock | None = None
        self.directory = step_folder / f"proc{os.getpid()}"
        if not rank.is_certain or not self._take(step_folder / f"rank{rank.number}"):
            self._take(self.directory)

    def settle(self, rank: Rank) -> bool:
        """Move to the rank's folder if that was not known or not free before; True when the folder has moved."""
        target = self._step_folder / f"rank{rank.number}"
        if not rank.is_certain or self.directory == target:
            return False
        before = self.directory
        try:
            lock = _take_folder(target)
        except (OSError, RunError):
            return False
        for entry in before.iterdir():
            if entry.name != _LOCK:
                disk.replace(entry, target / entry.name)
        self.release()
        self._lock, self.directory = lock, target
        with contextlib.suppress(OSError):
            disk.rmdir(before)
        return True

    def release(self) -> None:
        """Let another process write here."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _take(self, directory: Path) -> bool:
        try:
            self._lock = _take_folder(directory)
        except RunError:
            if directory == self.directory:
                raise
            return False
        self.directory = directory
        return True


def _take_folder(directory: Path) -> RunLock:
    """Lock a folder and empty it of what an earlier run left there: only what the probe writes itself."""
    disk.make_directories(directory)
    lock = RunLock(directory / _LOCK)
    for name in (STREAM, DOCUMENT):
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(directory / name)
    shutil.rmtree(directory / TENSOR_FOLDER, ignore_errors=True)
    return lock
