"""Hashes of what a tensor holds: msprobe's CRC-32, or 128 bits of xxh3."""

import importlib
import zlib
from typing import Any, Final, final

from typing_extensions import Buffer

from sonde.errors import MissingDependency
from sonde.probe.moments import Leaf

NO_HASH: Final = ""
MD5: Final = "md5"
"""msprobe's name for it; the hash is a CRC-32."""
XXH3: Final = "xxh3"
"""128 bits; needs the package xxhash."""


def check_hashing(hashing: str) -> None:
    """Raise when this hash needs a package that is not installed."""
    if hashing == XXH3:
        try:
            importlib.import_module("xxhash")
        except ImportError:
            raise MissingDependency("xxhash", needed_for='summary_mode="xxh3"', extra="probe") from None


def new_hash(hashing: str) -> "ContentHash | None":
    """The hash that was asked for; None for NO_HASH."""
    return None if hashing == NO_HASH else ContentHash(hashing)


@final
class ContentHash:
    """A hash of bytes that come piece by piece, in the order of the values."""

    def __init__(self, hashing: str) -> None:
        self._crc = 0
        self._xxh3: Any = importlib.import_module("xxhash").xxh3_128() if hashing == XXH3 else None

    def update(self, piece: Buffer) -> None:
        """Add bytes."""
        if self._xxh3 is None:
            self._crc = zlib.crc32(piece, self._crc)
        else:
            self._xxh3.update(piece)

    def write(self, leaf: Leaf) -> None:
        """Put the hash into the leaf."""
        if self._xxh3 is None:
            leaf[MD5] = f"{self._crc:08x}"
        else:
            leaf[XXH3] = self._xxh3.hexdigest()
