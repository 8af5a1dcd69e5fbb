"""Rows of the ledger as blocks of columns with checksums (docs/formats/ledger.md), and rows put together. Pure; the files are ledger.py's.

    header    magic, kind, number of columns, number of rows, bytes of payload, CRC-32 of all of it
    payload   per column its least value and the bytes that the differences to it need; then those bytes, plane by plane

A column takes as few bytes a row as its range in the block needs: a key of neighbouring samples two, a count that is always one none.
Whatever is torn or was changed is passed over: a reader looks for the next magic.
"""

import mmap
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

ROWS: Final = 6
"""Rows of samples, ordered by key; told such that rows of samples that were seen once are small."""
OLD_ROWS: Final = 1
"""As they were written at first: every column as it is."""
VISITS: Final = 2
"""Samples as they came: key, step, excess."""
REWIND: Final = 3
"""Visits before this block count up to a step only: a restart came back to it."""
NAMES: Final = 4
"""JSON: what the keys mean."""
BASE: Final = 5
"""JSON: which journal goes on after this file."""
UNIT: Final = 256
"""Excesses are kept as whole numbers of this fraction of a deviation, so that sums do not depend on their order."""
MAX_ROWS: Final = 1 << 16
"""Rows of a block at most."""
_FEW_ROWS: Final = 256
_MAGIC: Final = b"\x89SLg"
_HEADER: Final = struct.Struct("<4sBBHIII")
_COLUMN: Final = struct.Struct("<QB")

Whole = NDArray[np.int32] | NDArray[np.int64]
Keys = NDArray[np.uint64]
_NARROW: Final[tuple[Any, ...]] = (np.uint64, np.int32, np.int64, np.int32, np.int32, np.int32)
"""How the columns of rows are held: half the memory is half the time."""


@final
@dataclass(frozen=True, slots=True)
class Rows:
    """What is known of samples, a row each, ordered by key."""

    keys: Keys
    counts: Whole
    """How often a sample was seen."""
    sums: Whole
    """The sum of its excesses, in units,"""
    lasts: Whole
    """and the last of them."""
    first_steps: Whole
    last_steps: Whole

    def __len__(self) -> int:
        return len(self.keys)

    def columns(self) -> tuple[NDArray[Any], ...]:
        """In the order of the file."""
        return self.keys, self.counts, self.sums, self.lasts, self.first_steps, self.last_steps

    def part(self, places: Any) -> "Rows":
        """Some of them."""
        return Rows(*(column[places] for column in self.columns()))


class Block(NamedTuple):
    """One block as it was read; its checksum was right."""

    kind: int
    num_columns: int
    num_rows: int
    payload: memoryview


def no_rows() -> Rows:
    """Nothing yet."""
    return Rows(*(np.zeros(0, kind) for kind in _NARROW))


def rows_of_visits(keys: Keys, steps: Whole, excesses: Whole) -> Rows:
    """Visits in order of time, put together by sample."""
    if not len(keys):
        return no_rows()
    order = order_of(keys)
    keys, steps, excesses = keys[order], steps[order], excesses[order]
    is_first = np.empty(len(keys), bool)
    is_first[0] = True
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    if is_first.all():  # each once: the first epoch
        return Rows(keys, np.ones(len(keys), np.int32), excesses.astype(np.int64), excesses, steps, steps)
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(keys)) - 1
    sums = np.add.reduceat(excesses, first, dtype=np.int64)
    return Rows(keys[first], (last - first + 1).astype(np.int32), sums, excesses[last], steps[first], steps[last])


def order_of(keys: Keys) -> NDArray[np.intp]:
    """The places of keys in order; equal ones in the order they came. A fifth of the time that `argsort` takes.

    Key and place go into one number, which numpy sorts far faster than it finds an order; what of the key has no room is put right afterwards.
    """
    bits = np.uint64(max(len(keys) - 1, 1).bit_length())
    relative = keys - keys.min()
    spare = max(int(relative.max()).bit_length() + int(bits) - 64, 0)
    both = (relative >> np.uint64(spare) << bits) | np.arange(len(keys), dtype=np.uint64)
    both.sort()
    order: NDArray[np.intp] = (both & np.uint64((1 << int(bits)) - 1)).astype(np.intp)
    return order[np.argsort(keys[order], kind="stable")] if spare else order


def merged(old: Rows, new: Rows) -> Rows:
    """The rows of both; of a sample that is in both, the last excess is that of the later step (of `new`, at the same)."""
    if not len(old) or not len(new):
        return old if len(old) else new
    places = np.searchsorted(old.keys, new.keys)
    known = old.keys[np.minimum(places, len(old) - 1)] == new.keys
    all_known = bool(known.all())
    at, more = (places, new) if all_known else (places[known], new.part(known))
    counts, sums, lasts, first_steps, last_steps = (column.copy() for column in old.columns()[1:])
    counts[at] += more.counts
    sums[at] += more.sums
    lasts[at] = np.where(more.last_steps >= last_steps[at], more.lasts, lasts[at])
    first_steps[at] = np.minimum(first_steps[at], more.first_steps)
    last_steps[at] = np.maximum(last_steps[at], more.last_steps)
    both = (old.keys, counts, sums, lasts, first_steps, last_steps)
    if all_known:
        return Rows(*both)
    unknown = new.part(~known)
    places = places[~known] + np.arange(len(unknown))
    is_old = np.ones(len(old) + len(unknown), bool)
    is_old[places] = False
    columns = []
    for ours, theirs in zip(both, unknown.columns(), strict=True):
        columns.append(np.empty(len(is_old), ours.dtype))
        columns[-1][is_old] = ours
        columns[-1][places] = theirs
    return Rows(*columns)


def encode_rows(rows: Rows) -> bytes:
    """Rows as blocks."""
    blocks = []
    for start in range(0, len(rows), MAX_ROWS):
        part = rows.part(slice(start, start + MAX_ROWS))
        steps = np.diff(part.keys)
        # The first difference is none; it is told as the least of them, and the first key as a column of its own.
        differences = np.concatenate([steps.min(initial=np.iinfo(np.uint64).max, keepdims=True), steps])
        columns = (
            differences, part.counts, part.sums - part.lasts, part.lasts, part.first_steps, part.last_steps - part.first_steps,
        )  # fmt: skip
        blocks.append(encode_columns(ROWS, (*columns, np.full(len(part), part.keys[0]))))
    return b"".join(blocks)


def encode_columns(kind: int, columns: Sequence[NDArray[Any]]) -> bytes:
    """Columns as blocks of at most MAX_ROWS rows."""
    number = len(columns[0])
    blocks = []
    for start in range(0, number, MAX_ROWS):
        heads, planes = [], []
        for column in columns:
            part = column[start : start + MAX_ROWS]
            least = part.min().astype("<u8")  # negative ones wrap around, and back
            values = part.astype("<u8") - least
            width = (int(values.max()).bit_length() + 7) // 8
            heads.append(_COLUMN.pack(int(least), width))
            planes += [(values >> np.uint64(8 * place)).astype(np.uint8).tobytes() for place in range(width)]
        rows = min(MAX_ROWS, number - start)
        blocks.append(encode_block(kind, b"".join([*heads, *planes]), num_columns=len(columns), num_rows=rows))
    return b"".join(blocks)


def encode_block(kind: int, payload: bytes, *, num_columns: int = 0, num_rows: int = 0) -> bytes:
    """A block with its header and checksum."""
    head = _HEADER.pack(_MAGIC, kind, num_columns, 0, num_rows, len(payload), 0)
    checksum = zlib.crc32(payload, zlib.crc32(head))
    return _HEADER.pack(_MAGIC, kind, num_columns, 0, num_rows, len(payload), checksum) + payload


def decode_columns(block: Block, kinds: Sequence[Any]) -> list[NDArray[Any]]:
    """The columns of a block, as numbers of these kinds. ValueError when they do not fit their header."""
    if block.num_columns != len(kinds):
        raise ValueError(f"a block has {block.num_columns} columns instead of {len(kinds)}")
    place = block.num_columns * _COLUMN.size
    columns = []
    if place > len(block.payload) or block.num_rows > MAX_ROWS:
        raise ValueError("a block is shorter than its columns")
    if block.num_rows > max(
        len(block.payload), _FEW_ROWS
    ):  # of many rows some column differs: this is made to fill memory
        raise ValueError("a block has more rows than bytes")
    for number, kind in enumerate(kinds):
        least, width = _COLUMN.unpack_from(block.payload, number * _COLUMN.size)
        size = width * block.num_rows
        if width > 8 or place + size > len(block.payload):
            raise ValueError("a block is shorter than its columns")
        wide: Any = np.uint32 if width <= 4 and np.dtype(kind).itemsize == 4 else np.uint64
        whole = np.full(block.num_rows, least & int(np.iinfo(wide).max), wide)  # negative ones wrap around, and back
        for digit in range(width):
            plane = np.frombuffer(block.payload, np.uint8, block.num_rows, place + digit * block.num_rows)
            whole += np.left_shift(plane, 8 * digit, dtype=wide) if digit else plane
        columns.append(whole.view(kind) if wide().itemsize == np.dtype(kind).itemsize else whole.view(np.int64).astype(kind))  # fmt: skip
        place += size
    return columns


def decode_rows(block: Block) -> Rows:
    """The rows of a block."""
    if block.kind == OLD_ROWS:
        rows = Rows(*decode_columns(block, _NARROW))
    else:
        steps, counts, earlier, lasts, first_steps, spans, first = decode_columns(block, (*_NARROW, np.uint64))
        steps[:1] = first[:1]
        rows = Rows(np.cumsum(steps, dtype=np.uint64), counts, earlier + lasts, lasts, first_steps, first_steps + spans)
    if not ((rows.keys[1:] > rows.keys[:-1]).all() and (rows.counts > 0).all()):
        raise ValueError("rows are not in order, or were never seen")
    return rows


def decode_visits(block: Block) -> tuple[Keys, Whole, Whole]:
    """The visits of a block: keys, steps, excesses."""
    keys, steps, excesses = decode_columns(block, (np.uint64, np.int32, np.int32))
    return keys, steps, excesses


def scan_blocks(data: bytes | mmap.mmap) -> Iterator[Block | None]:
    """The blocks of a file; None for each stretch that is damaged."""
    view = memoryview(data)
    place = 0
    while place < len(view):
        block = _block_at(view, place)
        yield block
        if block is not None:
            place += _HEADER.size + len(block.payload)
            continue
        found = data.find(_MAGIC, place + 1)
        place = found if found >= 0 else len(view)


def _block_at(data: memoryview, place: int) -> Block | None:
    if len(data) - place < _HEADER.size:
        return None
    magic, kind, num_columns, _, num_rows, num_bytes, checksum = _HEADER.unpack_from(data, place)
    start = place + _HEADER.size
    if magic != _MAGIC or num_bytes > len(data) - start:
        return None
    payload = data[start : start + num_bytes]
    head = _HEADER.pack(magic, kind, num_columns, 0, num_rows, num_bytes, 0)
    if zlib.crc32(payload, zlib.crc32(head)) != checksum:
        return None
    return Block(kind, num_columns, num_rows, payload)
