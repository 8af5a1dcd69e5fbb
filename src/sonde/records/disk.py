"""The system calls that change a disk, in one place.

Every writer in sonde calls `disk.write(...)` instead of `os.write(...)`, so that a test can count
the calls of a save and then kill, tear or fail each of them in turn. The names are plain aliases
that cost one attribute lookup.
"""

import errno
import os
from pathlib import Path

open_file = os.open
write = os.write
fsync = os.fsync
close = os.close
replace = os.replace
mkdir = os.mkdir
unlink = os.unlink
rmdir = os.rmdir


def write_some(descriptor: int, payload: bytes | memoryview) -> int:
    """Write the first part of `payload`, at least one byte, and return the number of bytes
    written.
    """
    num_written = write(descriptor, payload)
    if num_written <= 0:
        raise OSError(errno.EIO, "the device took no bytes")
    return num_written


def write_all(descriptor: int, payload: bytes | memoryview) -> None:
    """Write every byte of `payload`; a short write (a disk filling up) is continued until it
    completes or fails.
    """
    view = memoryview(payload)
    while view:
        view = view[write_some(descriptor, view) :]


def fsync_directory(directory: Path) -> None:
    """Make a rename or a new name in `directory` durable. Does nothing where directories cannot be
    opened (Windows).
    """
    try:
        descriptor = open_file(directory, os.O_RDONLY)
    except PermissionError:
        if os.name == "nt":
            return
        raise
    try:
        fsync(descriptor)
    finally:
        close(descriptor)


def make_directories(directory: Path, *, mode: int = 0o777) -> None:
    """Create `directory` and its missing parents, each through `mkdir`. `mode` is that of the
    directory itself.
    """
    missing = []
    current = directory
    while not current.is_dir():
        missing.append(current)
        if current.parent == current:
            break
        current = current.parent
    for path in reversed(missing):
        try:
            mkdir(path, mode if path == directory else 0o777)
        except FileExistsError:
            if not path.is_dir():
                raise
