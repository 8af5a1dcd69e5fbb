"""A checksum manifest: `checksums.json` names every file of a directory with its size and SHA-256.

Written last, read first: a directory whose manifest verifies is whole. Costs 0.7 s per GB.

    {"format": "sonde-checksums", "version": 1, "files": {"model.safetensors": {"num_bytes": 123, "sha256": "9f86…"}}}
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from sonde.errors import DamagedFile
from sonde.records.atomic import write_file
from sonde.records.files import open_regular, read_small
from sonde.records.values import decode, encode

NAME: Final = "checksums.json"
_FORMAT: Final = "sonde-checksums"
_VERSION: Final = 1
_BLOCK_BYTES: Final = 1 << 20
_MAX_MANIFEST_BYTES: Final = 1 << 30


def file_digest(path: Path, *, follow: bool = False) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open_regular(path, follow=follow) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def write_checksums(directory: Path, known: Mapping[str, str] | None = None) -> None:
    """Name every file below `directory` in its checksum manifest. A digest that is `known` by the file's name is not computed."""
    known = known or {}
    files = {
        name: {"num_bytes": path.stat().st_size, "sha256": known.get(name) or file_digest(path)}
        for name, path in _files(directory)
    }
    document = {"format": _FORMAT, "version": _VERSION, "files": files}
    write_file(directory / NAME, encode(document, max_bytes=_MAX_MANIFEST_BYTES))


def verify_checksums(directory: Path) -> list[str]:
    """What is wrong with `directory`, one line a file; empty when every byte is as it was written.

    A file that the manifest does not name is a problem too: it was not there when the directory was written.
    """
    try:
        expected = _read_manifest(directory / NAME)
    except DamagedFile as error:
        return [error.message]
    found = dict(_files(directory))
    problems = [f"{name}: not in the manifest" for name in found if name not in expected]
    for name, entry in expected.items():
        problem = _compare(found[name], entry) if name in found else "missing"
        if problem:
            problems.append(f"{name}: {problem}")
    return problems


def _compare(path: Path, entry: dict[str, object]) -> str | None:
    try:
        num_bytes = path.stat().st_size
        if num_bytes != entry["num_bytes"]:
            return f"{num_bytes} bytes, should be {entry['num_bytes']}"
        return None if file_digest(path) == entry["sha256"] else "its bytes changed (SHA-256 differs)"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def _files(directory: Path) -> Iterable[tuple[str, Path]]:
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name != NAME:
            yield name, path


def _read_manifest(path: Path) -> dict[str, dict[str, object]]:
    try:
        document = decode(read_small(path))
    except FileNotFoundError:
        raise DamagedFile(f"{NAME}: missing") from None
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{NAME}: cannot be read ({error})") from None
    if not isinstance(document, dict) or document.keys() != {"format", "version", "files"}:
        raise DamagedFile(f"{NAME}: not a checksum manifest")
    files = document["files"]
    if document["format"] != _FORMAT or document["version"] != _VERSION or not isinstance(files, dict):
        raise DamagedFile(f"{NAME}: not a checksum manifest of version {_VERSION}")
    if not all(isinstance(entry, dict) and entry.keys() == {"num_bytes", "sha256"} for entry in files.values()):
        raise DamagedFile(f"{NAME}: an entry lacks its size or digest")
    return files
