"""Where checkpoints, reports and copies of runs are kept: a folder of a disk, or a URL that fsspec knows (`s3://…`, `gs://…`, `memory://…`).

    storage = storage_at("s3://bucket/run/checkpoints")      # or a path
    storage.write("a/b", payload)                            # whole or not at all
    with storage.create("step-1") as new:                    # a folder that appears whole or not at all
        new.write("tensors", payload)
        new.write(MANIFEST, …)                               # last

On a disk, a folder is made under a temporary name, synced and renamed. Below a URL nothing can be renamed: there a folder is whole once its
MANIFEST is there, which is written last and removed first. Names are relative, with `/`, and never lead out of the storage. A server that
cannot be reached or refuses is an OSError, as a failing disk is.
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
from typing import Any, BinaryIO, Final, TypeAlias, final

from sonde.errors import MissingDependency, RunError, SettingError, SondeError
from sonde.records import disk
from sonde.records.atomic import atomic_directory, atomic_file, sweep_temporaries
from sonde.records.files import SMALL_BYTES, open_regular, read_small, write_output

MANIFEST: Final = "checksums.json"
"""The file that makes a folder whole: it names all others (checksums.py)."""
Payload: TypeAlias = bytes | memoryview

_PIECE_BYTES: Final = 64 << 20
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
_DELETING: Final = ".deleting-"


def is_url(place: str | os.PathLike[str]) -> bool:
    """Is it the URL of a place, and not a path?"""
    return isinstance(place, str) and "://" in place


def storage_at(place: str | os.PathLike[str], *, identity: str = "") -> "Storage":
    """The storage at a path or a URL. Nothing is created or asked yet.

    `identity` is the file of a folder that says whose it is: below a URL it is removed last, so that its owner knows what a kill left of it.
    """
    if not is_url(place):
        return DiskStorage(Path(place).absolute())
    url = str(place)
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return DiskStorage(Path(rest).absolute())
    if not _SCHEME.fullmatch(scheme):
        raise SettingError(f"{url} is no place to keep files", hint="give a path, or a URL such as s3://bucket/folder")
    try:
        from fsspec.core import url_to_fs

        return UrlStorage(*url_to_fs(url, use_listings_cache=False), url=url.rstrip("/"), identity=identity)
    except ImportError as error:
        raise MissingDependency(error.name or "fsspec", needed_for=f"{scheme}:// paths", extra="remote") from error
    except ValueError as error:
        raise SettingError(f"{url} cannot be opened", cause=str(error)) from error


def write_anywhere(place: str | os.PathLike[str], payload: bytes) -> None:
    """Write one file that a user named, by its path (`write_output`) or its URL."""
    if not is_url(place):
        write_output(Path(place), payload)
        return
    folder, _, name = str(place).rpartition("/")
    try:
        storage_at(folder).write(name, payload)
    except OSError as error:
        raise RunError(f"cannot write {place}", cause=error.strerror or str(error)) from error


@final
class DiskStorage:
    """A folder of a disk."""

    is_local = True
    """There others see a file grow, and reading back costs little."""

    def __init__(self, path: Path) -> None:
        self.where = path
        """The path or URL."""

    def at(self, name: str) -> "DiskStorage":
        """A folder in it."""
        return DiskStorage(self._path(name))

    def sizes(self) -> dict[str, int]:
        """Every file in it and in its folders, with its number of bytes; nothing when there is no such storage."""
        found = {}
        for path in sorted(self.where.rglob("*")):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if path.is_file():
                    found[path.relative_to(self.where).as_posix()] = path.stat().st_size
        return found

    def folders(self) -> list[str]:
        """The folders directly in it that are whole: all that are no links."""
        if not self.where.is_dir():
            return []
        return [entry.name for entry in self.where.iterdir() if entry.is_dir() and not entry.is_symlink()]

    def unfinished(self) -> list[str]:
        """What killed writers left of folders directly in it; temporaries are swept at once."""
        if self.where.is_dir():
            sweep_temporaries(self.where)
        return [name for name in self.folders() if name.startswith(_DELETING)]

    def open(self, name: str) -> BinaryIO:
        """A regular file, to read."""
        return open_regular(self._path(name))

    def read(self, name: str, *, max_bytes: int = SMALL_BYTES) -> bytes:
        """All of a regular file. A larger one is refused before it is read."""
        return read_small(self._path(name), max_bytes=max_bytes)

    def write(self, name: str, payload: Payload) -> str:
        """Write a file, whole or not at all; returns its SHA-256. One that exists is replaced. In pieces, each synced before the next."""
        digest, path = hashlib.sha256(), self._path(name)
        disk.make_directories(path.parent)
        with atomic_file(path) as file:
            for piece in _pieces(payload):
                file.write(piece)
                file.flush()
                disk.fsync(file.fileno())
                digest.update(piece)
        return digest.hexdigest()

    def leave(self, name: str, payload: bytes) -> None:
        """Leave a note as well as can be in a storage that fails: at least its name, if there is room for that."""
        with contextlib.suppress(OSError):
            self._path(name).write_bytes(payload)

    def remove(self, name: str) -> None:
        """Remove a file."""
        disk.unlink(self._path(name))

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator["Storage"]:
        """A new folder to fill, which appears as `name` when the block ends well and vanishes when it does not."""
        disk.make_directories(self.where)
        with atomic_directory(self._path(name)) as temporary:
            yield DiskStorage(temporary)

    def move(self, name: str, new_name: str) -> None:
        """Give a folder another name, which is free. At every moment it is whole under one of them."""
        disk.make_directories(self._path(new_name).parent)
        disk.replace(self._path(name), self._path(new_name))

    def delete(self, name: str) -> None:
        """Remove a folder. Under another name first: at no moment is a part of it taken for the whole."""
        doomed = self._path(name if name.startswith(_DELETING) else f"{_DELETING}{name}")
        if not name.startswith(_DELETING):
            shutil.rmtree(doomed, ignore_errors=True)
            disk.replace(self._path(name), doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def check_space(self, num_bytes: int) -> None:
        """Raise unless this many bytes more can be written: the folder can be made, written to, and has room."""
        try:
            disk.make_directories(self.where)
            free = shutil.disk_usage(self.where).free
        except OSError as error:
            raise SondeError(f"checkpoints cannot be saved in {self.where}", cause=str(error)) from error
        if not os.access(self.where, os.W_OK | os.X_OK):
            raise SondeError(f"checkpoints cannot be saved in {self.where}", cause="it cannot be written to")
        if free < num_bytes:
            raise SondeError(
                f"there is no room for a checkpoint in {self.where}",
                cause=f"it needs {num_bytes / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free",
                hint="free some space, or save to another disk",
            )

    @contextlib.contextmanager
    def local_copy(self) -> Iterator[Path]:
        """Its files on this machine's disk, to be read for as long as the block lasts: the folder itself."""
        yield self.where

    def _path(self, name: str) -> Path:
        return self.where / _checked(name)


@final
class UrlStorage:
    """A folder of an object store, or of whatever else fsspec reaches."""

    is_local = False

    def __init__(self, system: Any, path: str, *, url: str, identity: str) -> None:
        """`path` is what the file system `system` calls `url`."""
        self._system = system
        self._root = path.rstrip("/")
        self._identity = identity
        self.where = url

    def at(self, name: str) -> "UrlStorage":
        """What is below a prefix."""
        return UrlStorage(self._system, self._path(name), url=f"{self.where}/{name}", identity=self._identity)

    def sizes(self) -> dict[str, int]:
        """Every object below, with its size."""
        try:
            found = self._ask("find", self._root, detail=True)
        except FileNotFoundError:
            return {}
        names = {path[len(self._root) + 1 :]: int(one["size"] or 0) for path, one in sorted(found.items())}
        return {name: size for name, size in names.items() if _is_name(name)}

    def folders(self) -> list[str]:
        """The prefixes that have a manifest."""
        return [folder for folder, _, name in (one.partition("/") for one in self.sizes()) if name == MANIFEST]

    def unfinished(self) -> list[str]:
        """The prefixes that have none."""
        return sorted({name.partition("/")[0] for name in self.sizes() if "/" in name} - set(self.folders()))

    def open(self, name: str) -> BinaryIO:
        """An object, to read; fetched as it is read."""
        file: BinaryIO = self._ask("open", self._path(name), "rb")
        return file

    def read(self, name: str, *, max_bytes: int = SMALL_BYTES) -> bytes:
        """All of an object."""
        if self._ask("size", self._path(name)) > max_bytes:
            raise OSError(errno.EFBIG, f"such a file has at most {max_bytes:,} bytes", f"{self.where}/{name}")
        return bytes(self._ask("cat_file", self._path(name)))

    def write(self, name: str, payload: Payload) -> str:
        """In one request, or as one upload in parts, which a server shows when it is complete."""
        digest, path = hashlib.sha256(payload).hexdigest(), self._path(name)
        if len(payload) <= _PIECE_BYTES:
            self._ask("pipe_file", path, bytes(payload))
            return digest
        with self._ask("open", path, "wb", block_size=_PIECE_BYTES) as file, _failing(self.where):
            for piece in _pieces(payload):
                file.write(piece)
        return digest

    def leave(self, name: str, payload: bytes) -> None:
        """As any other object."""
        with contextlib.suppress(OSError):
            self.write(name, payload)

    def remove(self, name: str) -> None:
        """Remove an object."""
        self._ask("rm_file", self._path(name))

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator["Storage"]:
        """Under its own name: it is not there before its manifest is."""
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
        """Copied by the server, then removed."""
        self.delete(new_name)
        old, new = self.at(name), self.at(new_name)
        for one in sorted(old.sizes(), key=lambda one: one == MANIFEST):
            self._ask("copy", old._path(one), new._path(one))
        self.delete(name)

    def delete(self, name: str) -> None:
        """The manifest first, what says whose it is last."""
        doomed = self.at(name)
        for one in sorted(doomed.sizes(), key=lambda one: (one != MANIFEST, one == self._identity)):
            doomed.remove(one)

    def check_space(self, num_bytes: int) -> None:  # noqa: ARG002  nobody can know
        """Nobody can know; that it answers is asked."""
        self.sizes()

    @contextlib.contextmanager
    def local_copy(self) -> Iterator[Path]:
        """Fetched into a temporary folder."""
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
"""Files by name, in folders. Both kinds have the same methods; those of `DiskStorage` say what each promises."""


@contextlib.contextmanager
def _failing(where: str) -> Iterator[None]:
    """Whatever a client of a service raises is an OSError, with the place."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = where
        raise
    except Exception as error:  # every client has errors of its own
        raise OSError(errno.EIO, " ".join(f"{type(error).__name__}: {error}".split()), where) from error


def _is_name(name: str) -> bool:
    """Does it name a file in a folder, and nothing elsewhere?"""
    return not any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in name.split("/"))


def _checked(name: str) -> str:
    if not _is_name(name):
        raise OSError(errno.EINVAL, "a name that leads elsewhere", name)
    return name


def _pieces(payload: Payload) -> Iterator[memoryview]:
    view = memoryview(payload)
    for start in range(0, len(view), _PIECE_BYTES):
        yield view[start : start + _PIECE_BYTES]
