"""Write the checksum manifest of a folder that a test has filled."""

import hashlib
from pathlib import Path

from sonde.records.checksums import encode_checksums
from sonde.records.storage import MANIFEST, Storage, storage_at


def write_checksums(place: Path | Storage) -> None:
    """List every file of the folder with its size and digest."""
    storage = storage_at(place) if isinstance(place, Path) else place
    files = {
        name: {"num_bytes": size, "sha256": hashlib.sha256(storage.read(name)).hexdigest()}
        for name, size in storage.sizes().items()
        if name != MANIFEST
    }
    storage.write(MANIFEST, encode_checksums(files))
