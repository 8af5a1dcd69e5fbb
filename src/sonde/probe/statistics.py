"""The way from an address in memory to the statistics and the hash of what lies there.

`measures()` gives a measuring function per dtype, compiled where the machine has a compiler, in numpy where not. The first
call of a process may build the kernel (about 1 s, once per machine).
"""

import ctypes
import functools
import importlib
import zlib
from typing import Any, Final, final

from typing_extensions import Buffer

from sonde.errors import MissingDependency
from sonde.probe import blocks, compiled
from sonde.probe.compiled import Measure
from sonde.probe.moments import Leaf

NO_HASH: Final = ""
MD5: Final = "md5"
"""msprobe's name for it; the hash is a CRC-32."""
XXH3: Final = "xxh3"
"""128 bits; needs the package xxhash."""


@functools.cache
def measures() -> dict[str, Measure]:
    """A measuring function per dtype name."""
    return compiled.load() or blocks.measures()


def memory_at(address: int, num_bytes: int) -> Buffer:
    """The bytes at an address, not copied. Whoever calls keeps the array alive."""
    return (ctypes.c_char * num_bytes).from_address(address) if num_bytes else b""


def check_hashing(hashing: str) -> None:
    """Raise when this hash needs a package that is not installed."""
    if hashing == XXH3:
        try:
            importlib.import_module("xxhash")
        except ImportError:
            raise MissingDependency("xxhash", needed_for='summary_mode="xxh3"', extra="probe") from None


def write_crc(leaf: Leaf, crc: int | None) -> None:
    """The CRC-32 as msprobe writes it."""
    if crc is not None:
        leaf["md5"] = f"{crc:08x}"


@final
class ContentHash:
    """A hash of bytes that come piece by piece, in the order of the values."""

    def __init__(self, hashing: str) -> None:
        self._hashing = hashing
        self.is_wanted = hashing != NO_HASH
        self._crc = 0
        self._xxh3: Any = importlib.import_module("xxhash").xxh3_128() if hashing == XXH3 else None

    def update(self, piece: Buffer) -> None:
        """Add bytes."""
        if self._hashing == MD5:
            self._crc = zlib.crc32(piece, self._crc)
        elif self._xxh3 is not None:
            self._xxh3.update(piece)

    def write(self, leaf: Leaf) -> None:
        """Put the hash into the leaf, if one was asked for."""
        if self._hashing == MD5:
            write_crc(leaf, self._crc)
        elif self._xxh3 is not None:
            leaf["xxh3"] = self._xxh3.hexdigest()
