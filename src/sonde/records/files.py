"""Open the files of a run and of its data safely, and write files that a user named.

A run may come from anywhere, so a path in it may be a link to somewhere else, a FIFO without a
writer, an endless device, or a folder. A reader that opens files through this module only gets
regular files:

    open_regular(path)               open a binary file; never blocks and follows no link
    read_small(path)                 read a file that should be small; a larger one is refused
                                     unread
    check_folder(path)               refuse a folder of a run that is a link, because it leads out
                                     of the run

Refusals are OSErrors whose `strerror` says what was found, so code that handles unreadable files
handles these too. `follow=True` is for paths named by a user and for data directories, where links
are usual.

Files and directories inside a run appear complete or not at all:

    atomic_file(path), write_file(path, payload), atomic_directory(path)

New content is written under a temporary name in the same directory, synced and renamed to the final
name, and the directory is synced. After a crash or power loss there is either the old or the new
content, never a mixture. A failure leaves no temporary file behind; a kill may, and
`sweep_temporaries` removes those that are provably ours and dead.

    output_file(path)                the file that `--out` names: replaced atomically if it is new
                                     or a regular file,
    write_output(path, payload)      written to directly if it is anything else (/dev/null,
                                     /dev/stdout, a pipe)

`append` and `atomic_file` refuse to replace or follow anything but regular files.
The cost is two system calls besides the open, 3 µs.
"""

import contextlib
import errno
import functools
import hashlib
import io
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from typing_extensions import Buffer

from sonde.errors import RunError, SondeError
from sonde.records import disk
from sonde.records.host import is_running, pid_namespace

SMALL_BYTES: Final = 64 << 20
"""Size limit in bytes for a manifest, verdict, sidecar or list; ours have a few kilobytes."""
WRITABLE: Final = (
    "check that the directory exists, is yours and has space, and that the file is no link"
)
"""The hint for a file that cannot be written."""

_READ: Final = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
) | getattr(os, "O_BINARY", 0)
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_KINDS: Final = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_TEMPORARY: Final = re.compile(
    r"\.sonde-tmp-(?P<machine>[0-9a-f]{8})-(?P<pid>[0-9]+)-[0-9a-f]{8}-.+", re.DOTALL
)


def open_regular(path: Path | str, *, follow: bool = False, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading. Anything else is refused, and so are links unless `follow`.
    Never blocks.
    """
    # Checked before opening, because opening a device may have side effects, and again after,
    # because it may have changed.
    _check_regular(os.stat(path, follow_symlinks=follow), path)
    descriptor = os.open(path, _READ | (0 if follow else _NO_FOLLOW))
    try:
        _check_regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb", buffering)
    except BaseException:
        os.close(descriptor)
        raise


def read_small(path: Path | str, *, max_bytes: int = SMALL_BYTES, follow: bool = False) -> bytes:
    """Read all bytes of a file that should be small. A larger one is refused before it is read."""
    with open_regular(path, follow=follow, buffering=0) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        payload = file.read(num_bytes + 1) if num_bytes <= max_bytes else b""
    if max(num_bytes, len(payload)) > max_bytes:
        reason = f"it has {num_bytes:,} bytes, and such a file has at most {max_bytes:,}"
        raise OSError(errno.EFBIG, reason, os.fspath(path))
    return payload


def seek_data(file: BinaryIO, offset: int) -> int:
    """Seek to the first byte at or after `offset` that was ever written, skipping holes; return its
    position.
    """
    descriptor = file.fileno()
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        offset = os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole up to the end
            offset = max(offset, os.fstat(descriptor).st_size)
    except AttributeError:
        pass  # the system does not support it
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)  # where the buffered `file` expects to be
    return file.seek(offset)


def check_folder(folder: Path, *, hint: str = "move the folder itself into the run") -> None:
    """Raise if a folder of a run is a link: reads and writes there would go outside the run."""
    try:
        found = os.lstat(folder)
    except OSError:
        return  # missing or not accessible: code that uses it will report that
    if not stat.S_ISDIR(found.st_mode):
        raise RunError(f"{folder} is {_what_it_is(found)}, not a folder of the run", hint=hint)


@contextlib.contextmanager
def explained(message: str, *, hint: str | None = None) -> Iterator[None]:
    """Turn what the system says about a path into a RunError. A pipe that its reader closed is no
    error of ours.
    """
    try:
        yield
    except (BrokenPipeError, SondeError):
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise RunError(
            message, cause=getattr(error, "strerror", None) or str(error), hint=hint
        ) from error


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file for a user's output; a regular file at `path` is replaced atomically.

    A link is followed, so that it stays a link. Raises RunError if it cannot be written.
    """
    with explained(
        f"cannot write {path}", hint="check that its folder exists, is yours and has space"
    ):
        through = _open_irregular(path)
        if through is not None:
            with os.fdopen(through, "wb") as stream:
                yield stream
        else:
            with atomic_file(Path(os.path.realpath(path))) as file:
                yield file


def write_output(path: Path, payload: bytes) -> None:
    """Write output to the path that a user named (see `output_file`)."""
    with output_file(path) as file:
        file.write(payload)


def _open_irregular(path: Path) -> int | None:
    """Return a descriptor to write to if `path` is not a regular file or is our stdout or stderr;
    otherwise None.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    # /dev/stdout redirected to a file by the shell: keep what is already in that file
    for standard in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.fstat(standard)):
                return os.dup(standard)
    if stat.S_ISREG(found.st_mode):
        return None
    return os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))


def _what_it_is(found: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(found.st_mode), "something unknown")


def _check_regular(found: os.stat_result, path: Path | str) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    code = errno.EINVAL
    if stat.S_ISLNK(found.st_mode):
        code = errno.ELOOP
    elif stat.S_ISDIR(found.st_mode):
        code = errno.EISDIR
    raise OSError(code, f"it is {_what_it_is(found)}, not a regular file", os.fspath(path))


def write_file(path: Path, payload: bytes) -> None:
    """Replace the content of `path` by `payload`, atomically and durably."""
    with atomic_file(path) as file:
        file.write(payload)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` if the block succeeds and is removed if it fails.

    A link is replaced, never followed. A device, a FIFO or a folder is refused (`output_file`
    writes through them when a user asked for it).
    """
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISLNK(found.st_mode):
            _check_regular(found, path)
    temporary = temporary_name(path)
    file = io.BufferedWriter(_CountedFile(temporary), buffer_size=1 << 20)
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
    """Yield an empty directory that becomes `path` if the block succeeds. `path` must not exist
    yet.

    Every file in it is synced before the rename. An existing directory is never overwritten: that
    would put the old one at risk, and a kill in the middle would leave neither.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    temporary = temporary_name(path)
    disk.mkdir(temporary)
    try:
        yield temporary
        _sync_tree(temporary)
        disk.replace(temporary, path)
        disk.fsync_directory(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sweep_temporaries(directory: Path) -> None:
    """Remove temporary files that killed processes of this machine left in `directory`.

    Only names created by this module are removed, and only if their process on this machine (or
    container) no longer runs. Everything that is not provably ours and dead stays, as does what
    cannot be removed.
    """
    for entry in list(directory.iterdir()):
        match = _TEMPORARY.fullmatch(entry.name)
        if match and match["machine"] == _machine() and not is_running(int(match["pid"])):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    entry.unlink()


class _CountedFile(io.RawIOBase):
    """A new file whose writes all go through `disk`, where fault tests count them and make one
    fail.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        flags = (
            os.O_WRONLY
            | os.O_CREAT
            | os.O_EXCL
            | getattr(os, "O_CLOEXEC", 0)
            | getattr(os, "O_BINARY", 0)
        )
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


def temporary_name(path: Path) -> Path:
    """Return a name beside `path` for what is being written or removed; `sweep_temporaries` knows
    it.
    """
    return path.with_name(
        f".sonde-tmp-{_machine()}-{os.getpid()}-{secrets.token_hex(4)}-{path.name}"
    )


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
