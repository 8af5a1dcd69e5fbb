"""A checksum as the last field of a JSON object, to detect bits that flip on a disk.

    {"type":"STEP","step":7,"loss":5.25,"_crc":"64abc53c"}

`_crc` is the CRC-32 of every byte before its comma, in hexadecimal. It detects every single flipped
bit and every burst of up to 32 bits; it is no protection against tampering. For other readers it is
a field like any other. Lines and documents without one are accepted: older versions and other
systems wrote none, and whoever edits a file by hand removes the field. Costs 0.4 µs for a line of
ten numbers when written, and 0.4 µs when read.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from zlib_ng.zlib_ng import crc32  # the same numbers as zlib's, four times as fast for a line

_MARK: Final = b',"_crc":"'
PADDED_SEAL: Final = b',"_crc":"%08x"}\n'
"""The end of a line, replacing its closing brace: the checksum of everything before."""
SEAL: Final = b',"_crc":"%x"}\n'
"""The same for a checksum of eight digits, as most have; a format width would double the formatting
time.
"""
EIGHT_DIGITS: Final = 1 << 28
_BRACE: Final = ord("{")
_NUM_BYTES: Final = len(_MARK) + 10
_MARK_NUMBER: Final = int.from_bytes(_MARK, "big")
_MARK_CODES: Final = np.frombuffer(_MARK, np.uint8)
_NIBBLES: Final = np.full(256, 255, np.uint32)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_PLACES: Final = (16 ** np.arange(7, -1, -1)).astype(np.uint32)


def seal(line: bytes) -> bytes:
    """Return the line of an object (`{…}` and a newline) with its checksum; any other line
    unchanged.
    """
    body = line[:-2]
    if line[0] != _BRACE or len(body) < 2:
        return line
    return body + PADDED_SEAL % crc32(body)


def seal_document(payload: bytes) -> bytes:
    """Return a JSON object of any layout with its checksum."""
    return seal(payload.rstrip()[:-1].rstrip() + b"}\n")


def unseal(payload: bytes) -> bytes:
    """Return the object without its checksum, if it has one. Raises ValueError if the checksum does
    not match.
    """
    end = len(payload) - _NUM_BYTES
    mark = payload[end : end + len(_MARK)]
    if mark != _MARK or end <= 0:
        if (
            len(mark) == len(_MARK)
            and (int.from_bytes(mark, "big") ^ _MARK_NUMBER).bit_count() == 1
        ):
            raise ValueError("the name of its checksum is damaged")
        return payload
    body = payload[:end]
    if payload[end + len(_MARK) :] != b'%08x"}' % crc32(body):
        raise ValueError("its checksum does not match what it says")
    return body + b"}"


def unseal_document(payload: bytes) -> bytes:
    """Do the same as `unseal`, ignoring trailing white space; the error says how to fix it."""
    try:
        return unseal(payload.rstrip())
    except ValueError as error:
        raise ValueError(f'{error} (whoever edited it takes the field "_crc" out)') from None


def are_intact(lines: Sequence[bytes]) -> bool:
    """Return whether all checksums in `lines` match. Fast for many lines; `unseal` says which one
    does not.
    """
    tails = b"".join([line[-_NUM_BYTES:] for line in lines])
    if len(tails) != _NUM_BYTES * len(lines):
        return False  # a line shorter than a checksum: check each
    codes = np.frombuffer(tails, np.uint8).reshape(-1, _NUM_BYTES)
    is_sealed = (codes[:, : len(_MARK)] == _MARK_CODES).all(axis=1)
    if not is_sealed.any():
        return True
    found = _NIBBLES[codes[:, len(_MARK) : len(_MARK) + 8]]
    right = np.fromiter(map(crc32, [line[:-_NUM_BYTES] for line in lines]), np.uint32, len(lines))
    matches = ((found * _PLACES).sum(axis=1, dtype=np.uint32) == right) & (found < 16).all(axis=1)
    return bool((matches | ~is_sealed).all())
