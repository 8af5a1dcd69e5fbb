"""The lock of a run directory: one live run per directory.

`lock.json` names the owner: host, boot, process id, the process's start time and its pid namespace.
The owner is

    alive       the same boot of the same host has a process with that id and that start time   ->
                refuse
    this one    a run that was not closed, as in a notebook whose cell is run again              ->
                a `Run` takes over
    dead        the same boot has no such process, or the host has booted since                  ->
                take over and report it
    elsewhere   another host or container, which cannot be queried                               ->
                refuse, with a hint

A brief advisory lock on the file makes reading and replacing the owner one step, so that two
starting processes cannot both win. Locking needs Linux or macOS; on Windows runs can be read but
not written.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from sonde.errors import RunError, RunLocked
from sonde.records import disk
from sonde.records.files import WRITABLE, explained, read_small
from sonde.records.host import is_running, pid_namespace
from sonde.records.seal import seal, unseal_document

ALIVE: Final = "alive"
DEAD: Final = "dead"
ELSEWHERE: Final = "elsewhere"
_MAX_LOCK_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The process that owns a run directory."""

    host: str
    pid: Annotated[int, msgspec.Meta(ge=1)]
    boot: str = ""
    """Id of one boot of the machine; empty if the system does not tell."""
    process_start: str = ""
    """Start time of the process in clock ticks since boot; detects a reused process id."""
    pid_namespace: str = ""
    """The container's pid namespace, because containers number their processes separately."""
    since: float = 0.0
    """When the lock was taken, in seconds since the epoch."""

    def state(self) -> str:
        """Return whether this owner is ALIVE, DEAD or ELSEWHERE."""
        here = current_owner()
        if self.host != here.host or self.pid_namespace != here.pid_namespace:
            return ELSEWHERE
        if self.boot != here.boot:
            return DEAD
        start = _process_start(self.pid)
        if start and self.process_start:
            return ALIVE if start == self.process_start else DEAD
        # The system does not report start times, or hides other users' processes.
        return ALIVE if is_running(self.pid) else DEAD


class RunLock:
    """The right to write to a run directory, held from construction until `release`.

    `previous` is the dead owner that we took over from, if any.
    """

    def __init__(self, path: Path, *, force: bool = False, reopen: bool = False) -> None:
        """`force` takes over from an owner elsewhere, `reopen` from this process; never from
        another live one.
        """
        self._reopen = reopen
        self._path = path
        self.previous: Owner | None = None
        self._mine = current_owner()
        with explained(f"cannot write the lock {path}", hint=WRITABLE):
            try:
                with _exclusive(path, os.O_CREAT) as descriptor:
                    owner = read_owner(path)
                    if owner is not None:
                        self._check(owner, force)
                        self.previous = owner
                    os.ftruncate(descriptor, 0)
                    disk.write_all(
                        descriptor, seal(json.dumps(asdict(self._mine)).encode() + b"\n")
                    )
                    disk.fsync(descriptor)
            except OSError:
                self.release()
                raise

    def release(self) -> None:
        """Release the directory. A lock taken by someone else meanwhile, or held by our parent
        process, stays.
        """
        if self._mine.pid != os.getpid():
            return
        with contextlib.suppress(OSError), _exclusive(self._path):
            if read_owner(self._path) == self._mine:
                disk.unlink(self._path)

    def _check(self, owner: Owner, force: bool) -> None:
        state = owner.state()
        if state == ALIVE and self._reopen and owner.pid == self._mine.pid:
            return  # a notebook cell that was run again: no other process writes here
        if state == ALIVE:
            raise RunLocked(
                f"{self._path.parent} belongs to a run that is still going",
                cause=f"process {owner.pid} on {owner.host}, since {_when(owner.since)}",
                hint="choose another directory, or stop that process first",
            )
        if state == ELSEWHERE and not force:
            raise RunLocked(
                f"{self._path.parent} may belong to a run on another machine",
                cause=(
                    f"process {owner.pid} on {owner.host}, since {_when(owner.since)}, cannot be"
                    " asked from here"
                ),
                hint=f"if that run is over, delete {self._path} or start with break_lock=True",
            )


def current_owner() -> Owner:
    """Return this process as an owner."""
    return Owner(
        host=socket.gethostname(),
        pid=os.getpid(),
        boot=_read_text("/proc/sys/kernel/random/boot_id"),
        process_start=_process_start(os.getpid()),
        pid_namespace=pid_namespace(),
        since=time.time(),
    )


def read_owner(path: Path) -> Owner | None:
    """Return the owner in a lock file; None if there is none (no file, or an empty or torn one).

    The owner in a damaged file is unknown, so it counts as one that cannot be queried.
    """
    try:
        text = read_small(path, max_bytes=_MAX_LOCK_BYTES)
    except (OSError, ValueError):
        return None
    try:
        return msgspec.json.decode(unseal_document(text), type=Owner)
    except msgspec.ValidationError:
        return None
    except (ValueError, msgspec.DecodeError, RecursionError):
        # A torn file, whose writer died, lacks the checksum at its end.
        is_whole = b'"_crc' in text or text.endswith(b"}\n")
        return Owner(host="(the lock is damaged)", pid=1) if is_whole else None


@contextlib.contextmanager
def _exclusive(path: Path, create: int = 0) -> Iterator[int]:
    """Hold the advisory lock on `path`; `create` is O_CREAT or 0."""
    try:
        import fcntl
    except ImportError:
        raise RunError(
            "runs can only be written on Linux and macOS", hint="reading them works here"
        ) from None
    while True:
        descriptor = disk.open_file(path, os.O_RDWR | create | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # A releasing owner may have unlinked the file between our open and our lock: then start
            # again.
            if _is_at(path, descriptor):
                yield descriptor
                return
        finally:
            disk.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _process_start(pid: int) -> str:
    """Return field 22 of /proc/PID/stat, counted from the end of the name, which may contain spaces
    and parentheses.

    A process that has ended but was not waited for (a container without an init) is still listed
    there: "ended".
    """
    text = _read_text(f"/proc/{pid}/stat")
    after_name = text.rpartition(")")[2].split()
    if len(after_name) <= 19:
        return ""
    return "ended" if after_name[0] in "ZX" else after_name[19]


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
