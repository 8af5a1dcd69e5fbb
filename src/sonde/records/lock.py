"""One live run per directory.

`lock.json` names the owner: host, boot, process id, the process's start time and its pid namespace. The owner is

    alive       the same boot of the same host has a process with that id and that start time   -> refuse
    dead        the same boot has no such process, or the host has booted since                  -> take over, and say so
    elsewhere   another host, or another container: it cannot be asked                           -> refuse, with a hint

A brief advisory lock on the file makes reading and replacing the owner one step, so two starters cannot both win.
Locking needs Linux or macOS; on Windows runs can be read but not written.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, final

from sonde.errors import RunError, RunLocked
from sonde.records import disk

ALIVE: Final = "alive"
DEAD: Final = "dead"
ELSEWHERE: Final = "elsewhere"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The process that owns a run directory."""

    host: str
    pid: int
    boot: str = ""
    """Identifies one boot of the machine; empty where the system does not tell."""
    process_start: str = ""
    """Start time of the process in clock ticks since boot: tells a reused process id."""
    pid_namespace: str = ""
    """Containers number their processes apart."""
    since: float = 0.0
    """When the lock was taken, in seconds since the epoch."""

    def state(self) -> str:
        """Is this owner ALIVE, DEAD or ELSEWHERE?"""
        here = current_owner()
        if self.host != here.host or self.pid_namespace != here.pid_namespace:
            return ELSEWHERE
        if self.boot != here.boot:
            return DEAD
        if self.process_start:
            return ALIVE if _process_start(self.pid) == self.process_start else DEAD
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return DEAD
        except OSError:
            return ALIVE
        return ALIVE


@final
class RunLock:
    """The right to write into a run directory, held from construction to `release`.

    `previous` is the dead owner we took over from, if there was one.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        """`force` takes over from an owner that is elsewhere; nothing takes over from one that is alive."""
        self._path = path
        self.previous: Owner | None = None
        with _exclusive(path) as descriptor:
            owner = read_owner(path)
            if owner is not None:
                self._check(owner, force)
                self.previous = owner
            self._mine = current_owner()
            os.ftruncate(descriptor, 0)
            disk.write_all(descriptor, json.dumps(asdict(self._mine)).encode() + b"\n")
            disk.fsync(descriptor)

    def release(self) -> None:
        """Give the directory up. A lock that someone else took meanwhile is left alone."""
        with contextlib.suppress(OSError, RunError), _exclusive(self._path):
            if read_owner(self._path) == self._mine:
                disk.unlink(self._path)

    def _check(self, owner: Owner, force: bool) -> None:
        state = owner.state()
        if state == ALIVE:
            raise RunLocked(
                f"{self._path.parent} belongs to a run that is still going",
                cause=f"process {owner.pid} on {owner.host}, since {_when(owner.since)}",
                hint="choose another directory, or stop that process first",
            )
        if state == ELSEWHERE and not force:
            raise RunLocked(
                f"{self._path.parent} may belong to a run on another machine",
                cause=f"process {owner.pid} on {owner.host}, since {_when(owner.since)}, cannot be asked from here",
                hint=f"if that run is over, delete {self._path} or start with takeover=True",
            )


def current_owner() -> Owner:
    """This process, as an owner."""
    return Owner(
        host=socket.gethostname(),
        pid=os.getpid(),
        boot=_read_text("/proc/sys/kernel/random/boot_id"),
        process_start=_process_start(os.getpid()),
        pid_namespace=_read_link("/proc/self/ns/pid"),
        since=time.time(),
    )


def read_owner(path: Path) -> Owner | None:
    """The owner named in a lock file; None when there is none (no file, an empty or a torn one)."""
    try:
        document = json.loads(path.read_bytes())
        return Owner(**{one.name: document[one.name] for one in fields(Owner) if one.name in document})
    except (OSError, ValueError, TypeError):
        return None


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[int]:
    try:
        import fcntl
    except ImportError:
        raise RunError("runs can only be written on Linux and macOS", hint="reading them works here") from None
    while True:
        descriptor = disk.open_file(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # A releasing owner may have unlinked the file between our open and our lock: then start again.
            if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                yield descriptor
                return
        finally:
            disk.close(descriptor)


def _process_start(pid: int) -> str:
    """Field 22 of /proc/PID/stat; the name in field 2 may hold spaces and parentheses, so count from its end."""
    text = _read_text(f"/proc/{pid}/stat")
    after_name = text.rpartition(")")[2].split()
    return after_name[19] if len(after_name) > 19 else ""


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
