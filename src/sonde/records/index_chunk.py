"""A part of a record file as columns, which the index stores instead of a row per value.

A chunk is up to 16384 consecutive lines, or 16 MB of them, as arrays: where each record starts, its step, and for each
metric the numbers and their records. Pure except for reading the given file; memory is bounded by one chunk, whatever
the file's size.

Every number in a record's `data` object is a metric. Keys of nested objects are joined with dots (`{"eval": {"loss":
1}}` is `eval.loss`), down to 16 levels. True and False are 1 and 0; the strings "NaN", "Infinity" and "-Infinity" are
the numbers they spell; everything becomes float64, so integers beyond 2**53 are rounded. Other strings, lists and null
are not metrics. If a name occurs twice in one record, the later value counts.

Costs 5 µs of CPU for a record of ten numbers, including storing it (benchmarks/records.py).
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from sonde.records.reader import LineScanner, parse_line
from sonde.records.seal import are_intact
from sonde.records.values import as_number, encode

CHUNK_RECORDS: Final = 16384
CHUNK_BYTES: Final = 16 << 20
"""A chunk ends at the first line that takes it past this many bytes, because records may be long."""
NO_STEP: Final = -(2**63)
"""Marks records without a numeric step, and pads steps that are shorter than others."""
MAX_STEP_WIDTH: Final = 3
"""A step is a number or a list of up to three: epoch, iteration, validation iteration."""

_MAX_NESTING: Final = 16

Integers = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


def read_chunks(scanner: LineScanner, file: BinaryIO) -> Iterator["Chunk"]:
    """Yield the complete lines from `scanner.offset` to the end of the file as chunks; all but the last are full."""
    lines = scanner.lines(file)
    exhausted = False
    while not exhausted:
        start, num_bad = scanner.offset, scanner.num_bad
        offsets: list[int] = []
        batch: list[bytes] = []
        exhausted = True
        for offset, line in lines:
            offsets.append(offset)
            batch.append(line)
            if len(batch) >= CHUNK_RECORDS or scanner.offset - start >= CHUNK_BYTES:
                exhausted = False
                break
        if scanner.offset == start:
            return
        located = _parse(scanner, offsets, batch)
        records = [record for _, record in located]
        yield Chunk(
            start=start,
            end=scanner.offset,
            num_bad=scanner.num_bad - num_bad,
            offsets=np.array([offset for offset, _ in located], np.int64),
            steps=_steps([record.step for record in records]),
            columns=_columns(records),
        )


def step_as_numbers(step: object) -> tuple[int, ...]:
    """Return the numbers of a step, at most three; empty if it has none (null, text, or beyond 64 bits)."""
    parts = step if isinstance(step, (list, tuple)) else (step,)
    if len(parts) > MAX_STEP_WIDTH:
        return ()
    numbers = []
    for part in parts:
        if isinstance(part, float) and part.is_integer():
            part = int(part)
        if not isinstance(part, int) or not NO_STEP < part < 2**63:
            return ()
        numbers.append(int(part))
    return tuple(numbers)


def _parse(scanner: LineScanner, offsets: list[int], lines: list[bytes]) -> list[tuple[int, "_Record"]]:
    """Return the lines that are records, with their offsets; the others are noted with the scanner."""
    # The typed decoder is twice as fast because it skips what the index does not store, without checking it. In
    # printable ASCII without escapes there is nothing to overlook; "$" may begin one of our encodings.
    whole = b"".join(lines)
    if whole.find(b"$") < 0 and whole.find(b"\\") < 0:
        codes: Bytes = np.frombuffer(whole, np.uint8)
        if codes.size and codes.min() >= ord(" ") and codes.max() <= ord("~") and are_intact(lines):
            try:
                return list(zip(offsets, map(_decode_plain, lines), strict=True))
            except (ValueError, RecursionError):
                pass  # some line is not a record: check each
    parsed = [(offset, parse_line(scanner, offset, line)) for offset, line in zip(offsets, lines, strict=True)]
    return [
        (offset, _Record(step=record.get("step"), data=_spelled(record.get("data"))))
        for offset, record in parsed
        if record is not None
    ]


def _spelled(value: object, nesting: int = 0) -> object:
    """Return what the reader decoded, with text such as "NaN" kept distinct from numbers, as in the file."""
    if isinstance(value, str) and value.endswith(("NaN", "Infinity")):
        spelled: object = orjson.loads(encode(value))
        return spelled
    if isinstance(value, dict) and nesting < _MAX_NESTING:
        return {key: _spelled(item, nesting + 1) for key, item in value.items()}
    return value


def _steps(steps: list[Any]) -> Integers:
    """Return one row per record, as wide as the widest step."""
    try:
        return np.frombuffer(array("q", steps), np.int64).reshape(-1, 1)
    except (TypeError, OverflowError):
        pass  # lists, text, null: one by one
    numbers = [step_as_numbers(step) for step in steps]
    width = max(1, max(map(len, numbers), default=1))
    return np.array([(*step, *[NO_STEP] * (width - len(step))) for step in numbers], np.int64).reshape(-1, width)


def _columns(records: list["_Record"]) -> dict[str, tuple[Rows, Floats]]:
    rows = [row for row, record in enumerate(records) if type(record.data) is dict]
    pieces: dict[str, list[tuple[Rows, Floats]]] = {}
    for name, where, numbers in _metrics(rows, [records[row].data for row in rows], "", 1):
        # Escape lone surrogates, because SQLite accepts only UTF-8.
        stored = name if name.isascii() else name.encode(errors="backslashreplace").decode()
        pieces.setdefault(stored, []).append((where, numbers))
    return {name: found[0] if len(found) == 1 else _merged(found) for name, found in pieces.items()}


def _merged(pieces: list[tuple[Rows, Floats]]) -> tuple[Rows, Floats]:
    """Merge the pieces of a column by row; of two numbers in one row, the later counts."""
    rows, numbers = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    order = np.argsort(rows, kind="stable")
    rows, numbers = rows[order], numbers[order]
    is_last = np.append(rows[1:] != rows[:-1], True)
    return rows[is_last], numbers[is_last]


def _metrics(
    rows: list[int], objects: list[dict[Any, Any]], prefix: str, nesting: int
) -> Iterator[tuple[str, Rows, Floats]]:
    """Yield every metric of these objects with its rows; objects with the same keys become one matrix."""
    alike: dict[tuple[Any, ...], tuple[list[int], list[dict[Any, Any]]]] = {}
    for row, item in zip(rows, objects, strict=True):
        where, members = alike.setdefault(tuple(item), ([], []))
        where.append(row)
        members.append(item)
    for keys, (where, members) in alike.items():
        if not keys:
            continue
        places = np.array(where, np.int32)
        try:
            matrix = _as_floats(chain.from_iterable(map(dict.values, members))).reshape(len(members), len(keys))
        except (TypeError, OverflowError):
            for key in keys:
                yield from _mixed_metric(f"{prefix}{key}", where, [item[key] for item in members], nesting)
        else:
            for position, key in enumerate(keys):
                yield f"{prefix}{key}", places, matrix[:, position]


def _mixed_metric(name: str, rows: list[int], values: list[Any], nesting: int) -> Iterator[tuple[str, Rows, Floats]]:
    """Yield the metrics under one key: numbers, spelled numbers, nested objects and others, in any mixture."""
    try:
        yield name, np.array(rows, np.int32), _as_floats(values)
        return
    except (TypeError, OverflowError):
        pass
    numbers = [as_number(value) for value in values]
    kept = [(row, number) for row, number in zip(rows, numbers, strict=True) if number is not None]
    if kept:
        yield name, np.array([row for row, _ in kept], np.int32), np.array([number for _, number in kept], np.float64)
    nested = [(row, value) for row, value in zip(rows, values, strict=True) if type(value) is dict]
    if nested and nesting < _MAX_NESTING:
        yield from _metrics([row for row, _ in nested], [value for _, value in nested], f"{name}.", nesting + 1)


def _as_floats(numbers: Iterable[Any]) -> Floats:
    # array("d") instead of numpy: it accepts only ints, floats and bools, while numpy would also read the text "1.5".
    return np.frombuffer(array("d", numbers), np.float64)


class _Record(msgspec.Struct, gc=False):
    """The part of a record that the index stores."""

    step: Any = None
    data: Any = None


_decode_plain = msgspec.json.Decoder(_Record).decode


class Chunk(NamedTuple):
    """Consecutive records of one file."""

    start: int
    """Byte offset of the first line."""
    end: int
    """Byte offset after the last line."""
    num_bad: int
    """Number of lines in between that are not records."""
    offsets: Integers
    steps: Integers
    """One row per record, padded with NO_STEP."""
    columns: dict[str, tuple[Rows, Floats]]
    """By metric: the records of the chunk that have it, from 0 and ascending, and their numbers."""
