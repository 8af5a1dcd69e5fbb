"""Where a process writes: dump_path/step{N}/rank{R}/, and which rank it is.

The rank is that of torch.distributed once it is initialised, else RANK (torchrun) or RANK_ID (msrun); a process that nobody
numbered is rank 0. A child process that does not know its rank yet, and one whose rank another living process has taken in
the same dump_path, writes into `proc{PID}` (msprobe's name for it); as soon as the rank is known and free the folder is
renamed. So nothing is ever written over by a neighbour, a fork or a later init. Where nobody numbered the process, `rank` is a
link to `rank0`: msprobe up to 8.3 writes there, and scripts look there.
"""

import contextlib
import multiprocessing
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from sonde.errors import RunError
from sonde.probe.dump_format import DOCUMENT, STREAM, TENSOR_FOLDER
from sonde.records import disk
from sonde.records.lock import RunLock

_UNNUMBERED: Final = "rank"


@final
@dataclass(frozen=True, slots=True)
class Rank:
    """This process's number, and whether it is more than a guess."""

    number: int
    is_certain: bool
    is_numbered: bool = True
    """Did a launcher or torch.distributed give it?"""


def current_rank(owner_pid: int) -> Rank:
    """The rank of this process; `owner_pid` is the process that made the probe (another one after a fork)."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(int(distributed.get_rank()), True)
    is_owner = os.getpid() == owner_pid
    for name in ("RANK", "RANK_ID"):
        text = os.environ.get(name, "")
        if text.isdecimal():
            return Rank(int(text), is_owner)
    return Rank(0, is_owner and multiprocessing.parent_process() is None, is_numbered=False)


def prepare_folder(directory: Path) -> None:
    """Create a folder, or empty it of what an earlier run left there: only what the probe writes itself."""
    try:
        disk.make_directories(directory.parent)
        disk.mkdir(directory)
    except FileExistsError:
        for name in (STREAM, DOCUMENT):
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(directory / name)
        shutil.rmtree(directory / TENSOR_FOLDER, ignore_errors=True)


def link_unnumbered(directory: Path) -> None:
    """Let `rank` lead to the folder of a process that nobody numbered. A convenience: it may fail."""
    with contextlib.suppress(OSError, NotImplementedError):
        directory.with_name(_UNNUMBERED).symlink_to(directory.name, target_is_directory=True)


def move_folder(before: Path, after: Path) -> bool:
    """Rename a step's folder when the rank has become known; what an earlier run left under the new name goes."""
    try:
        if before.with_name(_UNNUMBERED).is_symlink():
            disk.unlink(before.with_name(_UNNUMBERED))
        prepare_folder(after)
        disk.rmdir(after)
        disk.replace(before, after)
    except OSError:
        return False  # somebody keeps files of their own there: stay
    return True


@final
class Seat:
    """This process's place among those that write to the same dump_path, held from the first record to `release`."""

    def __init__(self, dump_path: Path, owner_pid: int) -> None:
        self._dump_path = dump_path
        self._owner_pid = owner_pid
        self._lock: RunLock | None = None
        self._taken = -1

    def rank(self) -> Rank:
        """This process's rank, as far as it is known now."""
        return current_rank(self._owner_pid)

    def folder_name(self) -> str:
        """What this process's folders are called, as far as it is known now."""
        rank = self.rank()
        if rank.is_certain and rank.number != self._taken:
            try:
                lock = RunLock(self._dump_path / f"rank{rank.number}.lock.json")
            except RunError:
                return f"proc{os.getpid()}"
            self.release()
            self._lock, self._taken = lock, rank.number
        return f"rank{self._taken}" if rank.is_certain else f"proc{os.getpid()}"

    def release(self) -> None:
        """Let another process have the rank."""
        if self._lock is not None:
            self._lock.release()
        self._lock, self._taken = None, -1
