"""A checksum manifest: `checksums.json` lists every file of a folder with its size and SHA-256.

Written last and read first: a folder whose manifest verifies is complete. Costs 0.7 s per GB.

    {"format": "sonde-checksums", "version": 1, "files": {"model.safetensors": {"num_bytes": 123,
        "sha256": "9f86…"}}}
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

from sonde.errors import DamagedFile
from sonde.records.files import SMALL_BYTES, open_regular
from sonde.records.storage import MANIFEST, Storage, storage_at
from sonde.records.values import decode, encode

NAME: Final = MANIFEST
_FORMAT: Final = "sonde-checksums"
_VERSION: Final = 1
_BLOCK_BYTES: Final = 1 << 20


def file_digest(path: Path, *, follow: bool = False) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open_regular(path, follow=follow) as file:
        return stream_digest(file)


def stream_digest(file: BinaryIO) -> str:
    """Return the SHA-256 of the rest of a stream in hexadecimal."""
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def encode_checksums(files: Mapping[str, Mapping[str, object]]) -> bytes:
    """Return a manifest of these files, each with its `num_bytes` and `sha256`."""
    return encode({"format": _FORMAT, "version": _VERSION, "files": files}, max_bytes=SMALL_BYTES)


def verify_checksums(place: Path | Storage, *, only_sizes: bool = False) -> list[str]:
    """Return what is wrong with a folder, one line per file; empty if every byte is intact.

    A file that the manifest does not list is a problem too: it was not there when the folder was
    written. With `only_sizes`, no file but the manifest is read.
    """
    storage = storage_at(place) if isinstance(place, Path) else place
    try:
        expected = read_checksums(storage)
        found = {name: size for name, size in storage.sizes().items() if name != NAME}
    except DamagedFile as error:
        return [error.message]
    except OSError as error:
        return [f"it cannot be listed ({error.strerror or error})"]
    problems = [f"{name}: not in the manifest" for name in found if name not in expected]
    for name, entry in expected.items():
        if name not in found:
            problems.append(f"{name}: missing")
        elif found[name] != entry["num_bytes"]:
            problems.append(f"{name}: {found[name]} bytes, should be {entry['num_bytes']}")
        elif not only_sizes:
            problems += _problems_of_content(storage, name, entry["sha256"])
    return problems


def _problems_of_content(storage: Storage, name: str, expected: object) -> list[str]:
    """Return what is wrong with the bytes of a file whose SHA-256 is expected; empty if nothing
    is.
    """
    try:
        with storage.open(name) as file:
            digest = stream_digest(file)
    except OSError as error:
        return [f"{name}: cannot be read ({error.strerror or error})"]
    if digest != expected:
        return [f"{name}: its bytes changed (SHA-256 differs)"]
    return []


def read_checksums(storage: Storage) -> dict[str, dict[str, object]]:
    """Return the entries of a folder's manifest by file name. Raises DamagedFile if there is no
    readable manifest.
    """
    try:
        document = decode(storage.read(NAME))
    except FileNotFoundError:
        raise DamagedFile(f"{NAME}: missing") from None
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{NAME}: cannot be read ({error})") from None
    if not isinstance(document, dict) or document.keys() != {"format", "version", "files"}:
        raise DamagedFile(f"{NAME}: not a checksum manifest")
    files = document["files"]
    if (
        document["format"] != _FORMAT
        or document["version"] != _VERSION
        or not isinstance(files, dict)
    ):
        raise DamagedFile(f"{NAME}: not a checksum manifest of version {_VERSION}")
    if not all(
        isinstance(entry, dict) and entry.keys() == {"num_bytes", "sha256"}
        for entry in files.values()
    ):
        raise DamagedFile(f"{NAME}: an entry lacks its size or digest")
    return files
