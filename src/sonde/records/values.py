"""Encode any Python value as one line of strictly valid JSON, and decode it.

A record may hold any value of a training script. Plain values (finite numbers, strings, lists,
string-keyed dicts, numpy numbers and arrays, one-element tensors) take the fast path: one call of
orjson, about a microsecond for ten numbers. What JSON cannot express is encoded so that any JSON
parser accepts it and `decode` restores it:

    NaN, +Inf, -Inf          "NaN", "Infinity", "-Infinity"
    the string "NaN"         "=NaN"        (one "=" more than the string has; likewise for the other
                                           two)
    int beyond 64 bits       {"$int": "1208925819614629174706176"}
    bytes                    {"$bytes": "AAEC"}                       base64
    complex                  {"$complex": [1.0, -2.0]}
    set                      {"$set": [1, 2]}
    lone surrogates          {"$str": "\\"\\\\ud800\\""}                  JSON within a string
    keys that are not strings, or begin with "$":   {"$dict": [[1, "a"], [[2, 3], "b"]]}

Unbounded or unknown values are cut, visibly:

    {"$cut": "…why…"}        in place of, or beside, what was left out (cycles, depth, size)
    {"$repr": "…"}           any other object

Tuples and arrays come back as lists, dataclasses as dicts, dates and paths as strings, enums as
their value. Neither function raises for any value, except that `decode` raises ValueError for what
is not JSON. torch is not imported: a tensor is recognized by its type's module.

A line has at most MAX_RECORD_BYTES. The fast path measures a line only after writing it, so a numpy
array of a gigabyte costs some seconds and some gigabytes before it is cut; a tensor costs nothing.
"""

import base64
import datetime
import enum
import json
import math
import operator
import pathlib
import re
import types
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
import orjson

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""Maximum length of a line in bytes; longer ones are cut. Limits what one bad value can do to the
disk and later readers.
"""

NO_STEP: Final = -(2**63)
"""Marks records without a numeric step in arrays, and pads steps that are shorter than others."""
MAX_STEP_WIDTH: Final = 3
"""A step is a number or a list of up to three: epoch, iteration, validation iteration."""

_BYTES_PER_VALUE: Final = 24
"""Bytes that the careful path assumes per number, with separators. Also bounds its time: 700,000
values, about 1 s.
"""
_MAX_DEPTH: Final = 64
_MAX_TEXT: Final = 100_000
_MAX_KEY: Final = 1_000
_MAX_REPR: Final = 500
_MAX_INT_BITS: Final = 1_000_000
# Dataclasses are passed through because orjson would omit their fields that begin with an
# underscore.
_OPTIONS: Final = (
    orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATACLASS
)
_DOLLAR, _SMALL_U, _CAPITAL_N, _CAPITAL_I = b"$uNI"
_null_in: Final = re.compile(rb"ull[,}\]\n]").search
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LOOKS_NON_FINITE: Final = re.compile(r"=*(NaN|-?Infinity)")


def encode(value: object, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Encode `value` as one line of JSON, newline included, of at most `max_bytes`. Never
    raises.
    """
    try:
        line = orjson.dumps(value, _scalar_tensor, _OPTIONS)
    except Exception:  # noqa: BLE001  whatever the fast path fails on, the careful one handles
        return _encode_with_care(value, max_bytes)
    # orjson writes NaN as null and knows nothing of our encodings; each of these checks means "look
    # closer". A single byte is searched for first, as a number: that is one memchr, 0.03 µs, while
    # searching for bytes in bytes takes 0.1 to 0.4 µs. A regular expression also goes from one "u"
    # to the next by memchr.
    if (
        _DOLLAR not in line
        and (_SMALL_U not in line or not _null_in(line) or _is_plainly_finite(value))
        and (_CAPITAL_N not in line or line.rfind(b'NaN"') < 0)
        and (_CAPITAL_I not in line or line.rfind(b'Infinity"') < 0)
        and len(line) <= max_bytes
    ):
        return line
    return _encode_with_care(value, max_bytes)


def decode(line: bytes | bytearray | memoryview) -> object:
    """Decode one line of JSON, including our encodings. Raises ValueError if it is not JSON.

    Also accepts the bare NaN and Infinity that Python's own json module writes.
    """
    line = bytes(line)
    try:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            value = json.loads(line)
        is_plain = b'"$' not in line and b'NaN"' not in line and b'Infinity"' not in line
        return value if is_plain else _restore(value)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _is_plainly_finite(value: object) -> bool:
    """Return whether every null stands for None. Exact built-in types only: 3 µs for ten numbers,
    not 30.
    """
    kind = type(value)
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]  # its exact type was checked
    if kind is dict:
        # its exact type was checked
        return all(map(_is_plainly_finite, value.values()))  # type: ignore[attr-defined]
    if kind is list or kind is tuple:
        # its exact type was checked
        return all(map(_is_plainly_finite, value))  # type: ignore[call-overload]
    return value is None or kind is str or kind is int or kind is bool


def _scalar_tensor(value: object) -> object:
    """Handle torch scalars on orjson's fast path; everything else takes the careful path."""
    if is_tensor_type(type(value)) and value.ndim == 0:  # type: ignore[attr-defined]  # a tensor
        return value.item()  # type: ignore[attr-defined]  # a tensor
    raise TypeError


def is_tensor_type(kind: type) -> bool:
    """Return whether this is torch's tensor type or derived from it."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in kind.__mro__)


def _encode_with_care(value: object, max_bytes: int) -> bytes:
    # JSON escapes can make a character six bytes long, so a second, tighter pass may be needed; it
    # nearly always fits.
    try:
        for budget in (max_bytes, max_bytes // 16):
            line = orjson.dumps(_Plain(budget).plain(value, 0), None, _OPTIONS)
            if len(line) <= max_bytes:
                return line
        why = f"a record of {len(line)} bytes"
    except Exception as error:  # noqa: BLE001
        # out of memory or stack: a record must not fail the caller's step
        why = f"a record ({type(error).__name__} while writing it)"
    return orjson.dumps({"$cut": why}, None, _OPTIONS)


class _Plain:
    """One walk over a value that converts it to what orjson accepts, within a budget of bytes."""

    def __init__(self, budget_bytes: int) -> None:
        self._bytes_left = budget_bytes
        self._open: set[int] = set()  # ids of the enclosing containers, to detect cycles

    def plain(self, value: object, depth: int) -> object:
        """Return `value` as strictly plain data for orjson."""
        self._bytes_left -= _BYTES_PER_VALUE
        if value is None or value is True or value is False:
            return value
        try:
            # The base classes' own methods: a subclass may have overridden its own with anything.
            if isinstance(value, str) and not isinstance(value, enum.Enum):
                return self._text(str.__str__(value))
            if isinstance(value, int) and not isinstance(value, enum.Enum):
                return self._integer(int.__index__(value))
            if isinstance(value, float) and not isinstance(value, enum.Enum):
                return _real(float.__float__(value))
            if depth >= _MAX_DEPTH:
                return self._cut(f"deeper than {_MAX_DEPTH} levels")
            return self._container(value, depth)
        except Exception as error:  # noqa: BLE001
            # foreign __class__, __iter__, __repr__, tolist … may raise anything
            return self._repr(f"{type(value).__name__} ({type(error).__name__} while reading it)")

    def _cut(self, why: str) -> object:
        self._bytes_left -= len(why)
        return {"$cut": why}

    def _repr(self, text: str) -> object:
        return {"$repr": self._text(text[:_MAX_REPR])}

    def _integer(self, number: int) -> object:
        if -(2**63) <= number < 2**64:
            return number
        bits = number.bit_length()
        if bits > _MAX_INT_BITS:
            return self._cut(f"an int of {bits} bits")
        # Python refuses to print or read very long decimals; hexadecimal has no such limit.
        text = str(number) if bits < 10_000 else hex(number)
        self._bytes_left -= len(text)
        return {"$int": text}

    def _container(self, value: object, depth: int) -> object:
        if id(value) in self._open:
            return self._cut("a cycle")
        self._open.add(id(value))
        try:
            if isinstance(value, Mapping):
                return self._mapping(value, depth)
            if isinstance(value, (list, tuple)):
                return self._items(value, depth)
            if isinstance(value, Set):
                return {"$set": self._items(sorted(value, key=repr), depth)}
            if isinstance(value, (bytes, bytearray, memoryview)):
                return self._blob(bytes(value))
            if is_dataclass(value) and not isinstance(value, type):
                return self._mapping({f.name: getattr(value, f.name) for f in fields(value)}, depth)
            return self._other(value, depth)
        finally:
            self._open.discard(id(value))

    def _other(self, value: object, depth: int) -> object:
        if isinstance(value, np.floating) and np.isfinite(value) and value.dtype.itemsize <= 8:
            return value  # orjson's own format, shortest for its width, as on the fast path
        if isinstance(value, np.generic | np.ndarray) or is_tensor_type(type(value)):
            return self._array(value, depth)
        if isinstance(value, complex):
            return {"$complex": [_real(value.real), _real(value.imag)]}
        if isinstance(value, enum.Enum):
            return self.plain(value.value, depth + 1)
        if isinstance(value, (datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, (pathlib.PurePath, uuid.UUID, Decimal, Fraction)):
            return self._text(str(value))
        if isinstance(value, types.SimpleNamespace) or type(value).__name__ == "Namespace":
            return self._mapping(dict(vars(value)), depth)
        return self._repr(repr(value))

    def _text(self, text: str) -> object:
        if len(text) > _MAX_TEXT and len(text) > self._bytes_left:
            start = text[:_MAX_KEY]
            self._bytes_left -= len(start)
            return {"$cut": f"a string of {len(text)} characters", "start": self._text(start)}
        self._bytes_left -= len(text)
        if text.isascii():
            return "=" + text if _LOOKS_NON_FINITE.fullmatch(text) else text
        try:
            text.encode()
        except UnicodeEncodeError:
            return {"$str": json.dumps(text)}
        return text

    def _blob(self, blob: bytes) -> object:
        if len(blob) * 4 // 3 > max(self._bytes_left, 0):
            return self._cut(f"{len(blob)} bytes")
        self._bytes_left -= len(blob) * 4 // 3
        return {"$bytes": base64.b64encode(blob).decode()}

    def _items(self, values: Sequence[object], depth: int) -> list[object]:
        kept: list[object] = []
        for position, child in enumerate(values):
            if self._bytes_left <= 0:
                kept.append(self._cut(f"{len(values) - position} more items"))
                break
            kept.append(self.plain(child, depth + 1))
        return kept

    def _mapping(self, mapping: Mapping[Any, object], depth: int) -> dict[str, object]:
        if not all(_is_plain_key(key) for key in mapping):
            pairs: list[Sequence[object]] = [list(pair) for pair in mapping.items()]
            return {"$dict": self._items(pairs, depth)}
        kept: dict[str, object] = {}
        for position, (key, child) in enumerate(mapping.items()):
            if self._bytes_left <= 0:
                kept["$cut"] = f"{len(mapping) - position} more keys"
                break
            name = str(key)
            self._bytes_left -= len(name)
            kept[name] = self.plain(child, depth + 1)
        return kept

    def _array(self, array: Any, depth: int) -> object:
        """Convert a numpy or torch value by its own `tolist`; a large one is described instead."""
        if math.prod(array.shape) * _BYTES_PER_VALUE > max(self._bytes_left, 0):
            return self._cut(
                f"{type(array).__name__} of shape {list(array.shape)}, dtype {array.dtype}"
            )
        plain = array.tolist()
        # Python has no floats wider than 64 bits: numpy's are returned unchanged by `tolist`.
        if isinstance(plain, np.generic):
            return self._repr(repr(plain))
        return self.plain(plain, depth + 1)


def _is_plain_key(key: object) -> bool:
    if type(key) is not str or key.startswith("$") or len(key) > _MAX_KEY:
        return False
    return key.isascii() or not any("\ud800" <= character <= "\udfff" for character in key)


def _real(number: float) -> object:
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def as_text(value: object) -> str:
    """Return a text unchanged, and any other value as its JSON."""
    return value if isinstance(value, str) else encode(value).decode().strip()


def as_number(value: object) -> float | None:
    """Return a value as a number, decoded or still encoded as in a line; None if it is not one."""
    if isinstance(value, (int, float)) or (isinstance(value, str) and value in _NON_FINITE):
        try:
            return float(value)
        except OverflowError:
            return None
    return None


def step_numbers(step: object) -> tuple[int, ...]:
    """Return the numbers of a step, at most three; empty if it has none (null, a name, or beyond 64
    bits).
    """
    parts = step if isinstance(step, (list, tuple)) else (step,)
    try:
        numbers = [
            int(part) if isinstance(part, float) and part.is_integer() else operator.index(part)
            for part in parts
        ]
    except TypeError:
        return ()
    is_step = len(numbers) <= MAX_STEP_WIDTH and all(NO_STEP < number < 2**63 for number in numbers)
    return tuple(numbers) if is_step else ()


def _restore(value: object) -> object:
    """Undo our encodings. Anything that does not have the exact form of one is left unchanged."""
    if isinstance(value, str):
        return _restore_text(value)
    if isinstance(value, list):
        return [_restore(child) for child in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (tag, body), *_ = value.items()
        if tag in _RESTORERS:
            try:
                return _RESTORERS[tag](body)
            except (TypeError, ValueError, LookupError):
                return value
    return {key: _restore(child) for key, child in value.items()}


def _restore_text(text: str) -> object:
    if not text.endswith(("NaN", "Infinity")) or not _LOOKS_NON_FINITE.fullmatch(text):
        return text
    return text[1:] if text.startswith("=") else _NON_FINITE[text]


def _restore_key(key: object) -> object:
    return _hashable(_restore(key))


def _hashable(value: object) -> object:
    if isinstance(value, list):
        return tuple(_hashable(child) for child in value)
    return frozenset(value) if isinstance(value, set) else value


def _restore_surrogates(body: str) -> str:
    text = json.loads(body)
    if not isinstance(text, str):
        raise TypeError
    return text


_RESTORERS: Final[dict[str, Callable[[Any], object]]] = {
    "$int": lambda body: int(body, 0),
    "$bytes": lambda body: base64.b64decode(body, validate=True),
    "$complex": lambda body: complex(*(float(part) for part in body)),
    "$set": lambda body: {_restore_key(child) for child in body},
    "$str": _restore_surrogates,
    "$dict": lambda body: {_restore_key(key): _restore(child) for key, child in body},
}
