"""Files and directories that appear complete or not at all.

New content is written under a temporary name in the same directory, synced and renamed to the final name, and the
directory is synced. After a crash or power loss there is either the old or the new content, never a mixture. A failure
leaves no temporary file behind; a kill may, and `sweep_temporaries` removes those that are provably ours and dead.
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
from typing import BinaryIO, Final, cast

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
    """Yield a binary file that becomes `path` if the block succeeds and is removed if it fails.

    A link is replaced, never followed. A device, a FIFO or a folder is refused (`files.output_file` writes through them
    when a user asked for it).
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
    """Yield an empty directory that becomes `path` if the block succeeds. `path` must not exist yet.

    Every file in it is synced before the rename. An existing directory is never overwritten: that would put the old one
    at risk, and a kill in the middle would leave neither.
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
    """Remove temporary files that killed processes of this machine left in `directory`; return their names.

    Only names created by this module are removed, and only if their process on this machine (or container) no longer
    runs. Everything that is not provably ours and dead stays, as does what cannot be removed.
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


class _SeamFile(io.RawIOBase):
    """A new file whose writes all go through `disk`, so that fault tests reach it."""

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
    """Return an id for the scope of our process ids: the host and the container on it."""
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
