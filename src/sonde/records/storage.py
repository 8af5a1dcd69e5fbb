"""Storage for checkpoints, reports and copies of runs: a local folder, or a URL that fsspec
supports (`s3://…`).

    storage = storage_at("s3://bucket/run/checkpoints")      # or a path
    storage.write("a/b", payload)                            # atomically
    # A folder that appears complete or not at all
    with storage.create("step-1") as new:
        new.write("tensors", payload)
        new.write(MANIFEST, …)                               # last

On disk, a folder is created under a temporary name, synced and renamed. Below a URL nothing can be
renamed: there a folder is complete once its MANIFEST exists, which is written last and removed
first. Names are relative, with `/`, and never lead out of the storage. An unreachable or refusing
server raises OSError, like a failing disk.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from sonde.errors import MissingDependency, SettingError, SondeError
from sonde.records import disk
from sonde.records.files import (
    SMALL_BYTES,
    atomic_directory,
    atomic_file,
    explained,
    open_regular,
    read_small,
    sweep_temporaries,
    temporary_name,
    write_output,
)

MANIFEST: Final = "checksums.json"
"""The file that makes a folder complete: it lists all others (checksums.py)."""
IDENTITY: Final = "state.json"
"""The file that says whose a checkpoint is. Below a URL it is removed last: its owner recognizes
what a kill left.
"""
Payload: TypeAlias = bytes | memoryview

_PIECE_BYTES: Final = 64 << 20
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")


_PACKAGES: Final = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "az": "adlfs",
    "hf": "huggingface_hub",
    "ssh": "paramiko",
    "sftp": "paramiko",
}
"""The package that fsspec needs for each kind of address."""


def is_url(place: str | os.PathLike[str]) -> bool:
    """Return whether `place` is a URL, not a path."""
    return isinstance(place, str) and "://" in place


def storage_at(place: str | os.PathLike[str]) -> "Storage":
    """Return the storage at a path or URL. Nothing is created or requested yet."""
    if not is_url(place):
        return DiskStorage(Path(place).absolute())
    url = str(place)
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return DiskStorage(Path(rest).absolute())
    if not _SCHEME.fullmatch(scheme):
        raise SettingError(
            f"{url} is no place to keep files",
            hint="give a path, or a URL such as s3://bucket/folder",
        )
    try:
        from fsspec.core import url_to_fs

        return UrlStorage(*url_to_fs(url, use_listings_cache=False), url=url.rstrip("/"))
    except ImportError as error:
        missing = _PACKAGES.get(scheme, error.name or "fsspec")
        if missing not in ("fsspec", "s3fs"):
            raise SettingError(
                f"{scheme}:// paths need {missing}, which is not installed",
                hint=f"pip install {missing}",
            ) from error
        raise MissingDependency(missing, needed_for=f"{scheme}:// paths", extra="remote") from error
    except ValueError as error:
        raise SettingError(f"{url} cannot be opened", cause=str(error)) from error


def write_anywhere(place: str | os.PathLike[str], payload: bytes) -> None:
    """Write one file named by a user, by path (`write_output`) or URL."""
    if not is_url(place):
        write_output(Path(place), payload)
        return
    folder, _, name = str(place).rpartition("/")
    with explained(f"cannot write {place}"):
        storage_at(folder).write(name, payload)


class DiskStorage:
    """A folder on disk."""

    is_local = True
    """True for local storage, where others see a file grow and reading back is cheap."""

    def __init__(self, path: Path) -> None:
        self.where = path
        """The path or URL."""

    def at(self, name: str) -> "DiskStorage":
        """Return a folder in the storage."""
        return DiskStorage(self._path(name))

    def sizes(self) -> dict[str, int]:
        """Return every file with its size in bytes, including subfolders; empty if the storage does
        not exist.
        """
        found = {}
        # Unlike Path.rglob, os.walk passes over a folder that is removed meanwhile.
        paths = [Path(folder, name) for folder, _, names in os.walk(self.where) for name in names]
        for path in sorted(paths):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if path.is_file():
                    found[path.relative_to(self.where).as_posix()] = path.stat().st_size
        return found

    def folders(self) -> list[str]:
        """Return the complete folders directly in the storage: all that are not links."""
        if not self.where.is_dir():
            return []
        return [
            entry.name
            for entry in self.where.iterdir()
            if entry.is_dir() and not entry.is_symlink()
        ]

    def unfinished(self) -> list[str]:
        """Return the unfinished folders that killed writers left: none, as temporary ones are
        removed right away.
        """
        if self.where.is_dir():
            sweep_temporaries(self.where)
        return []

    def open(self, name: str) -> BinaryIO:
        """Open a regular file for reading."""
        return open_regular(self._path(name))

    def read(self, name: str, *, max_bytes: int = SMALL_BYTES) -> bytes:
        """Read a whole regular file. One larger than `max_bytes` is refused before it is read."""
        return read_small(self._path(name), max_bytes=max_bytes)

    def write(self, name: str, payload: Payload) -> str:
        """Write or replace a file atomically and return its SHA-256."""
        path = self._path(name)
        disk.make_directories(path.parent)
        with atomic_file(path) as file:
            file.write(payload)
        return hashlib.sha256(payload).hexdigest()

    def remove(self, name: str) -> None:
        """Remove a file."""
        disk.unlink(self._path(name))

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator["Storage"]:
        """Yield a new folder to fill; it appears as `name` if the block succeeds and is removed if
        it fails.
        """
        disk.make_directories(self.where)
        with atomic_directory(self._path(name)) as temporary:
            yield DiskStorage(temporary)

    def move(self, name: str, new_name: str) -> None:
        """Rename a folder to a name that is free. It is complete under one of the two names at
        every moment.
        """
        disk.make_directories(self._path(new_name).parent)
        disk.replace(self._path(name), self._path(new_name))

    def delete(self, name: str) -> None:
        """Remove a folder, renaming it first so that a part of it is never mistaken for the
        whole.
        """
        doomed = temporary_name(self._path(name))
        disk.replace(self._path(name), doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def check_space(self, num_bytes: int) -> None:
        """Raise unless the folder can be created and written to and has room for this many more
        bytes.
        """
        with explained(f"checkpoints cannot be saved in {self.where}"):
            disk.make_directories(self.where)
            free = shutil.disk_usage(self.where).free
        if not os.access(self.where, os.W_OK | os.X_OK):
            raise SondeError(
                f"checkpoints cannot be saved in {self.where}", cause="it cannot be written to"
            )
        if free < num_bytes:
            raise SondeError(
                f"there is no room for a checkpoint in {self.where}",
                cause=f"it needs {num_bytes / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free",
                hint="free some space, or save to another disk",
            )

    @contextlib.contextmanager
    def local_copy(self) -> Iterator[Path]:
        """Yield a local folder with the files, valid during the block: here, the folder itself."""
        yield self.where

    def _path(self, name: str) -> Path:
        return self.where / _checked(name)


class UrlStorage:
    """A folder in an object store, or in anything else that fsspec supports."""

    is_local = False

    def __init__(self, system: Any, path: str, *, url: str) -> None:
        """`path` is the file system's own path for `url`."""
        self._system = system
        self._root = path.rstrip("/")
        self.where = url

    def at(self, name: str) -> "UrlStorage":
        """Return the storage below a prefix."""
        return UrlStorage(self._system, self._path(name), url=f"{self.where}/{name}")

    def sizes(self) -> dict[str, int]:
        """Return every object below with its size in bytes."""
        try:
            found = self._ask("find", self._root, detail=True)
        except FileNotFoundError:
            return {}
        names = {
            path[len(self._root) + 1 :]: int(details["size"] or 0)
            for path, details in sorted(found.items())
        }
        return {name: size for name, size in names.items() if _is_name(name)}

    def folders(self) -> list[str]:
        """Return the prefixes that have a manifest."""
        return [
            folder
            for folder, _, name in (name.partition("/") for name in self.sizes())
            if name == MANIFEST
        ]

    def unfinished(self) -> list[str]:
        """Return the prefixes that have no manifest."""
        return sorted(
            {name.partition("/")[0] for name in self.sizes() if "/" in name} - set(self.folders())
        )

    def open(self, name: str) -> BinaryIO:
        """Open an object for reading; it is fetched as it is read."""
        file: BinaryIO = self._ask("open", self._path(name), "rb")
        return file

    def read(self, name: str, *, max_bytes: int = SMALL_BYTES) -> bytes:
        """Read a whole object."""
        if self._ask("size", self._path(name)) > max_bytes:
            raise OSError(
                errno.EFBIG, f"such a file has at most {max_bytes:,} bytes", f"{self.where}/{name}"
            )
        return bytes(self._ask("cat_file", self._path(name)))

    def write(self, name: str, payload: Payload) -> str:
        """Write in one request, or as one multipart upload, which a server shows only when
        complete.
        """
        digest = hashlib.sha256(payload).hexdigest()
        path = self._path(name)
        if len(payload) <= _PIECE_BYTES:
            self._ask("pipe_file", path, bytes(payload))
            return digest
        with self._ask("open", path, "wb", block_size=_PIECE_BYTES) as file, _failing(self.where):
            for start in range(0, len(payload), _PIECE_BYTES):
                file.write(payload[start : start + _PIECE_BYTES])
        return digest

    def remove(self, name: str) -> None:
        """Remove an object."""
        self._ask("rm_file", self._path(name))

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator["Storage"]:
        """Yield a new folder under its own name; it does not count as existing until its manifest
        does.
        """
        if name in self.folders():
            raise FileExistsError(f"{self.where}/{name} exists already")
        self.delete(name)
        try:
            yield self.at(name)
        except BaseException:
            with contextlib.suppress(OSError):
                self.delete(name)
            raise

    def move(self, name: str, new_name: str) -> None:
        """Copy a folder on the server, then remove the original."""
        self.delete(new_name)
        old = self.at(name)
        new = self.at(new_name)
        for file in sorted(old.sizes(), key=lambda file: file == MANIFEST):
            self._ask("copy", old._path(file), new._path(file))
        self.delete(name)

    def delete(self, name: str) -> None:
        """Remove a folder, starting with the manifest and ending with the file that identifies its
        owner.
        """
        doomed = self.at(name)
        for file in sorted(doomed.sizes(), key=lambda file: (file != MANIFEST, file == IDENTITY)):
            doomed.remove(file)

    def check_space(self, num_bytes: int) -> None:  # noqa: ARG002  free space is unknown
        """Check only that the server answers: free space is unknown."""
        self.sizes()

    @contextlib.contextmanager
    def local_copy(self) -> Iterator[Path]:
        """Fetch the files into a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="sonde-fetched-") as folder:
            for name in self.sizes():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._ask("get_file", self._path(name), str(path))
            yield Path(folder)

    def _path(self, name: str) -> str:
        return f"{self._root}/{_checked(name)}"

    def _ask(self, call: str, *arguments: Any, **options: Any) -> Any:
        with _failing(self.where):
            return getattr(self._system, call)(*arguments, **options)


Storage: TypeAlias = DiskStorage | UrlStorage
"""Files by name, in folders. Both kinds have the same methods; those of `DiskStorage` document the
guarantees.
"""


@contextlib.contextmanager
def _failing(where: str) -> Iterator[None]:
    """Turn whatever a service client raises into an OSError that names the place."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = where
        raise
    except Exception as error:  # every client has its own errors
        raise OSError(
            errno.EIO, " ".join(f"{type(error).__name__}: {error}".split()), where
        ) from error


def _is_name(name: str) -> bool:
    """Return whether this names a file inside a folder and does not lead elsewhere."""
    return not any(
        part in ("", ".", "..") or "\\" in part or "\0" in part for part in name.split("/")
    )


def _checked(name: str) -> str:
    if not _is_name(name):
        raise OSError(errno.EINVAL, "a name that leads elsewhere", name)
    return name
