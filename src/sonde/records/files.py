"""The one way to open the files of a run and of its data, and the one way to write a file that a user named.

A run may come from anywhere, so what stands where a file should stand may be a link to somewhere else, a FIFO that nobody writes to,
a device that never ends, or a folder. A reader that opens through this module meets regular files only:

    open_regular(path)               a binary file; nothing here blocks, and no link is followed
    read_small(path)                 all of a file that should be small; a larger one is refused unread
    check_folder(path)               a folder of a run that is a link leads out of it: refused

Everything is refused with an OSError whose `strerror` says in plain words what was found, so whoever copes with a file that cannot
be read copes with these. `follow=True` is for paths that a user named, and for data directories, where links are usual.

    output_file(path)                what `--out` names: replaced whole or not at all when it is a regular file or new,
    write_output(path, payload)      written through when it is anything else (/dev/null, /dev/stdout, a pipe)

Files inside a run are written with `atomic` and `append`, which refuse to replace or to follow what is no regular file.

Cost: two system calls beside the open, 3 µs.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from sonde.errors import RunError
from sonde.records.atomic import atomic_file
from sonde.records.disk import what_it_is

SMALL_BYTES: Final = 64 << 20
"""What a manifest, a verdict, a sidecar or a list may have at most; ours have some kilobytes."""

_READ: Final = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
) | getattr(os, "O_BINARY", 0)
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)


def open_regular(path: Path | str, *, follow: bool = False, buffering: int = -1) -> BinaryIO:
    """The file, open for reading. What is no regular file is refused, a link too unless `follow`. Never blocks."""
    # Looked at before it is opened: opening a device may itself do something. And after, since it may have changed meanwhile.
    _check_regular(os.stat(path, follow_symlinks=follow), path)
    descriptor = os.open(path, _READ | (0 if follow else _NO_FOLLOW))
    try:
        _check_regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb", buffering)
    except BaseException:
        os.close(descriptor)
        raise


def read_small(path: Path | str, *, max_bytes: int = SMALL_BYTES, follow: bool = False) -> bytes:
    """All bytes of a file that should be small. A larger one is refused before it is read."""
    with open_regular(path, follow=follow, buffering=0) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        payload = file.read(num_bytes + 1) if num_bytes <= max_bytes else b""
    if max(num_bytes, len(payload)) > max_bytes:
        reason = f"it has {num_bytes:,} bytes, and such a file has at most {max_bytes:,}"
        raise OSError(errno.EFBIG, reason, os.fspath(path))
    return payload


def seek_data(file: BinaryIO, offset: int) -> int:
    """Go to the first byte at or after `offset` that was ever written: a hole of a terabyte is not worth reading. Returns where that is."""
    descriptor = file.fileno()
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        offset = os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            offset = max(offset, os.fstat(descriptor).st_size)
    except AttributeError:
        pass  # a system that does not tell
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)  # where `file`, which has a buffer of its own, believes to be
    return file.seek(offset)


def check_folder(folder: Path, *, hint: str = "move the folder itself into the run") -> None:
    """Refuse a folder of a run that is a link: what is read or written there would be outside of the run."""
    try:
        found = os.lstat(folder)
    except OSError:
        return  # missing, or not ours to look at: whoever uses it will say so
    if not stat.S_ISDIR(found.st_mode):
        raise RunError(f"{folder} is {what_it_is(found)}, not a folder of the run", hint=hint)


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write what a user asked for: `path` appears whole or not at all, unless it is no regular file.

    A link is followed, so that it stays a link. Raises RunError when it cannot be written.
    """
    try:
        through = _open_irregular(path)
        if through is not None:
            with os.fdopen(through, "wb") as stream:
                yield stream
        else:
            with atomic_file(Path(os.path.realpath(path))) as file:
                yield file
    except BrokenPipeError:
        raise  # its reader has gone, which is its right
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise RunError(
            f"cannot write {path}",
            cause=getattr(error, "strerror", None) or str(error),
            hint="check that its folder exists, is yours and has space",
        ) from error


def write_output(path: Path, payload: bytes) -> None:
    """Write what a user asked for to where the user said (`output_file`)."""
    with output_file(path) as file:
        file.write(payload)


def _open_irregular(path: Path) -> int | None:
    """A descriptor to write to, when something other than a regular file of its own stands there; else None."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    for standard in (1, 2):  # /dev/stdout, sent to a file by the shell: what is in that file already must stay
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.fstat(standard)):
                return os.dup(standard)
    if stat.S_ISREG(found.st_mode):
        return None
    return os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))


def _check_regular(found: os.stat_result, path: Path | str) -> None:
    if not stat.S_ISREG(found.st_mode):
        is_link = stat.S_ISLNK(found.st_mode)
        code = errno.ELOOP if is_link else errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(code, f"it is {what_it_is(found)}, not a regular file", os.fspath(path))
