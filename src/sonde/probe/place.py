"""Where a process writes (dump_path/step{N}/rank{R}/) and which rank it is.

The rank comes from torch.distributed once it is initialized, otherwise from RANK (torchrun) or RANK_ID (msrun); without
any of these it is 0. A process writes to `proc{PID}` (msprobe's name) if it is a child that does not know its rank yet,
or if another living process holds its rank in the same dump_path. The folder is renamed as soon as the rank is known
and free. So no neighbor, fork or later init ever overwrites anything. If nothing assigned a rank, `rank` is a link to
`rank0`, because msprobe up to 8.3 writes to `rank` and scripts look there.
"""

import contextlib
import multiprocessing
import os
import shutil
import sys
from pathlib import Path
from typing import Final, NamedTuple, final

from sonde.errors import RunError
from sonde.probe.dump import DOCUMENT, STREAM, TENSOR_FOLDER
from sonde.records import disk
from sonde.records.lock import RunLock

_UNNUMBERED: Final = "rank"


class Rank(NamedTuple):
    """The rank of this process, and whether it is certain."""

    number: int
    is_certain: bool
    is_numbered: bool = True
    """True if a launcher or torch.distributed assigned the number."""


def current_rank(owner_pid: int) -> Rank:
    """Return the rank of this process; `owner_pid` created the probe and differs from ours after a fork."""
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
    """Create a folder, or remove what an earlier run of the probe left in it; other files are kept."""
    try:
        disk.make_directories(directory.parent)
        disk.mkdir(directory)
    except FileExistsError:
        for name in (STREAM, DOCUMENT):
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(directory / name)
        shutil.rmtree(directory / TENSOR_FOLDER, ignore_errors=True)


def link_unnumbered(directory: Path) -> None:
    """Create the link `rank` to the folder of a process without an assigned rank. Failures are ignored."""
    with contextlib.suppress(OSError, NotImplementedError):
        directory.with_name(_UNNUMBERED).symlink_to(directory.name, target_is_directory=True)


def move_folder(before: Path, after: Path) -> bool:
    """Rename a step's folder once the rank is known, replacing what an earlier run left under the new name."""
    try:
        if before.with_name(_UNNUMBERED).is_symlink():
            disk.unlink(before.with_name(_UNNUMBERED))
        prepare_folder(after)
        disk.rmdir(after)
        disk.replace(before, after)
    except OSError:
        return False  # the target holds files that are not ours: keep the current folder
    return True


@final
class Seat:
    """This process's place among the writers to the same dump_path, held from the first record until `release`."""

    def __init__(self, dump_path: Path, owner_pid: int) -> None:
        self._dump_path = dump_path
        self._owner_pid = owner_pid
        self._lock: RunLock | None = None
        self._taken = -1

    def rank(self) -> Rank:
        """Return this process's rank, as far as it is known now."""
        return current_rank(self._owner_pid)

    def folder_name(self) -> str:
        """Return the name of this process's folders, as far as it is known now."""
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
        """Release the rank so that another process can take it."""
        if self._lock is not None:
            self._lock.release()
        self._lock, self._taken = None, -1
