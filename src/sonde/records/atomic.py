"""Files and directories that appear whole or not at all.

The new content is written under a temporary name in the same directory, synced, renamed over the final name, and the
directory is synced: after a crash or power loss there is the old content or the new, never a mixture. A failure leaves
no temporary behind; a kill may, and `sweep_temporaries` removes those that we can prove are ours and dead.
"""

import contextlib
import functools
import hashlib
import io
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast, final

from typing_extensions import Buffer

from sonde.records import disk
from sonde.records.host import is_running, pid_namespace

_TEMPORARY: Final = re.compile(r"\.sonde-tmp-(?P<machine>[0-9a-f]{8})-(?P<pid>[0-9]+)-[0-9a-f]{8}-.+", re.DOTALL)


def write_file(path: Path, payload: bytes) -> None:
    """Replace the content of `path` by `payload`, atomically and durably."""
    with atomic_file(path) as file:
        file.write(payload)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write to, which becomes `path` when the block ends well and vanishes when it does not.

    A link is replaced, never followed. A device, a FIFO or a folder is neither: it is refused (`files.output_file` writes through
    them, where a user asked for it).
    """
    disk.refuse_irregular(path)
    temporary = _temporary_name(path)
    file = io.BufferedWriter(_SeamFile(temporary), buffer_size=1 << 20)
    try:
        with file:
            yield cast("BinaryIO", file)
            file.flush()
            disk.fsync(file.fileno())
        disk.replace(temporary, path)
        disk.fsync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """An empty directory to fill, which becomes `path` when the block ends well. `path` must not exist yet.

    Every file in it is synced before the rename. A directory is never written over: that would put the good old one at
    risk, and a kill in the middle would leave neither.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    temporary = _temporary_name(path)
    disk.mkdir(temporary)
    try:
        yield temporary
        _sync_tree(temporary)
        disk.replace(temporary, path)
        disk.fsync_directory(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sweep_temporaries(directory: Path) -> list[str]:
    """Remove what killed processes of this machine left behind in `directory`; returns the names removed.

    Only names that this module makes, and only of processes of this machine (or container) that no longer run: what we
    cannot prove to be ours and dead stays. What cannot be removed stays too.
    """
    removed = []
    for entry in sorted(directory.iterdir()):
        match = _TEMPORARY.fullmatch(entry.name)
        if match and match["machine"] == _machine() and not is_running(int(match["pid"])):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    entry.unlink()
            if not os.path.lexists(entry):
                removed.append(entry.name)
    return removed


@final
class _SeamFile(io.RawIOBase):
    """A new file whose every write goes through `disk`, so that fault tests reach it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._descriptor = disk.open_file(path, flags, 0o644)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, payload: Buffer) -> int:
        return disk.write(self._descriptor, payload)

    def close(self) -> None:
        if not self.closed:
            super().close()
            disk.close(self._descriptor)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".sonde-tmp-{_machine()}-{os.getpid()}-{secrets.token_hex(4)}-{path.name}")


@functools.cache
def _machine() -> str:
    """Where our process ids mean something: the host, and the container on it."""
    return hashlib.sha256(f"{socket.gethostname()} {pid_namespace()}".encode()).hexdigest()[:8]


def _sync_tree(directory: Path) -> None:
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            descriptor = disk.open_file(os.path.join(parent, name), os.O_RDONLY)
            try:
                disk.fsync(descriptor)
            finally:
                disk.close(descriptor)
        disk.fsync_directory(Path(parent))
