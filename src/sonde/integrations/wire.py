"""The wire format of protocol buffers, as far as logs of other tools need it: the fields of a message, one by one, without its schema.

Pure, and safe with any bytes: what is no message raises ValueError. Nothing is allocated beyond slices of what was given.
"""

import struct
from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = int | float | bytes
"""A varint as an int without sign, 64 bits as a float, 32 bits as a float, anything with a length as bytes."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of every field, in the order of the bytes."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        value: Value
        if kind == 0:
            value, at = _varint(message, at)
        elif kind in (1, 5):
            num_bytes, code = (8, "<d") if kind == 1 else (4, "<f")
            if at + num_bytes > end:
                raise ValueError("a number is cut short")
            (value,), at = struct.unpack_from(code, message, at), at + num_bytes
        elif kind == 2:
            length, at = _varint(message, at)
            if at + length > end:
                raise ValueError("a field is longer than its message")
            value, at = message[at : at + length], at + length
        else:
            raise ValueError(f"a field of wire type {kind}")
        yield number, value


def inner(value: Value) -> bytes:
    """A value that must be a message or a text."""
    if not isinstance(value, bytes):
        raise ValueError("a number stands where a message should")
    return value


def text(value: Value) -> str:
    """A value that must be a text."""
    return inner(value).decode(errors="replace")


def signed(value: Value) -> int:
    """A value that must be an int64."""
    if not isinstance(value, int):
        raise ValueError("no whole number")
    return value - (1 << 64) if value >> 63 else value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number has no end")
