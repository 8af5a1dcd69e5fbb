"""Rows of the ledger as blocks of columns with checksums (docs/formats/ledger.md), and rows put together. Pure; the files are ledger.py's.

    header    magic, kind, number of columns, number of rows, bytes of payload, CRC-32 of all of it
    payload   per column its least value and the bytes that the differences to it need; those bytes, plane by plane; the highest planes, deflated

Keys are in order, so each is told as its distance from the one before. The highest byte of a column says little, and a Huffman code makes that little
small: a sample seen twice and known by 63 bits of its content takes 12.4 bytes, of which its key takes 5.2. Whatever is torn or was changed is passed over: a reader looks for the next magic.
"""

import mmap
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

ROWS: Final = 7
"""Rows of samples, ordered by key; told such that rows of samples that were seen once are small."""
VISITS: Final = 8
"""Samples as they came: key, step, excess; ordered by key, the same key in order of time."""
REWIND: Final = 3
"""Visits before this block count up to a step only: a restart came back to it."""
NAMES: Final = 4
"""JSON: what the keys mean."""
BASE: Final = 5
"""JSON: which journal goes on after this file."""
PLAIN_ROWS: Final = 1
"""Rows as they were written at first, every column as it is;"""
PLAIN_VISITS: Final = 2
"""visits so;"""
RAW_ROWS: Final = 6
"""and rows as they are written now, but for the deflated planes."""
UNIT: Final = 256
"""Excesses are kept as whole numbers of this fraction of a deviation, so that sums do not depend on their order."""
MAX_ROWS: Final = 1 << 16
"""Rows of a block at most."""
_FEW_ROWS: Final = 256
_MAGIC: Final = b"\x89SLg"
_HEADER: Final = struct.Struct("<4sBBHIII")
_COLUMN: Final = struct.Struct("<QB")
_OF_ROWS: Final = ("<u8", "<i4", "<i8", "<i4", "<i4", "<i4")
"""How the columns of rows are held,"""
_OF_VISITS: Final = ("<u8", "<i4", "<i4")
"""and those of visits: half the memory is half the time."""

Whole = NDArray[np.int32] | NDArray[np.int64]
Keys = NDArray[np.uint64]


class Visits(NamedTuple):
    """Samples as they came."""

    keys: Keys
    steps: Whole
    excesses: Whole

    def part(self, places: Any) -> "Visits":
        """Some of them."""
        return Visits(*(column[places] for column in self))


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

    @property
    def has_rows(self) -> bool:
        """Does it hold rows of samples?"""
        return self.kind in (ROWS, RAW_ROWS, PLAIN_ROWS)


def in_order(parts: Sequence[Visits]) -> Visits:
    """Visits ordered by key; those of the same key in the order they came.

    Key and place go into one number, which numpy sorts in a fifth of the time that it takes to find an order; what of the key has no room in it hardly ever matters.
    """
    if not parts:
        return Visits(*(np.zeros(0, kind) for kind in _OF_VISITS))
    visits = Visits(*map(np.concatenate, zip(*parts, strict=True)))
    keys = visits.keys
    bits = len(keys).bit_length()
    relative = keys - keys.min(initial=keys[0] if len(keys) else 0)
    spare = max(int(relative.max(initial=0)).bit_length() + bits - 64, 0)
    both = (relative >> np.uint64(spare) << np.uint64(bits)) | np.arange(len(keys), dtype=np.uint64)
    both.sort()
    order = (both & np.uint64((1 << bits) - 1)).astype(np.intp)
    visits = visits.part(order)
    if (visits.keys[1:] < visits.keys[:-1]).any():
        return visits.part(np.argsort(visits.keys, kind="stable"))
    return visits


def rows_of_visits(visits: Visits) -> Rows:
    """Visits in order, put together by sample."""
    keys, steps, excesses = visits
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    last = np.append(first, len(keys))[1:] - 1
    sums = np.add.reduceat(excesses, first, dtype=np.int64) if len(first) else excesses.astype(np.int64)
    return Rows(keys[first], (last - first + 1).astype(np.int32), sums, excesses[last], steps[first], steps[last])


def merged(old: Rows, new: Rows) -> Rows:
    """The rows of both, in the place of `old`; of a sample that is in both, the last excess is that of the later step (of `new`, at the same)."""
    if not len(old) or not len(new):
        return old if len(old) else new
    places = np.searchsorted(old.keys, new.keys)
    known = old.keys[np.minimum(places, len(old) - 1)] == new.keys
    more, at = new.part(known), places[known]
    old.counts[at] += more.counts
    old.sums[at] += more.sums
    last_steps = old.last_steps[at]
    old.lasts[at] = np.where(more.last_steps >= last_steps, more.lasts, old.lasts[at])
    old.first_steps[at] = np.minimum(old.first_steps[at], more.first_steps)
    old.last_steps[at] = np.maximum(last_steps, more.last_steps)
    if known.all():
        return old
    unknown = new.part(~known)
    places = places[~known] + np.arange(len(unknown))
    is_old = np.ones(len(old) + len(unknown), bool)
    is_old[places] = False
    columns = []
    for ours, theirs in zip(old.columns(), unknown.columns(), strict=True):
        columns.append(np.empty(len(is_old), ours.dtype))
        columns[-1][is_old] = ours
        columns[-1][places] = theirs
    return Rows(*columns)


def encode_rows(rows: Rows) -> bytes:
    """Rows as blocks."""
    spans = rows.last_steps - rows.first_steps
    return encode_columns(ROWS, (rows.keys, rows.counts, rows.sums - rows.lasts, rows.lasts, rows.first_steps, spans))


def encode_columns(kind: int, columns: Sequence[NDArray[Any]]) -> bytes:
    """Columns, the first of them keys in order, as blocks of at most MAX_ROWS rows."""
    blocks = []
    for start in range(0, len(columns[0]), MAX_ROWS):
        keys, *others = (column[start : start + MAX_ROWS] for column in columns)
        heads, planes, highest = [], [], []
        for column in (np.diff(keys, prepend=keys[:1]), *others):
            least = column.min().astype("<u8")  # negative ones wrap around, and back
            values = column.astype("<u8") - least
            width = (int(values.max()).bit_length() + 7) // 8
            heads.append(_COLUMN.pack(int(least), width))
            digits = values.view(np.uint8).reshape(len(keys), 8)
            planes += [digits[:, place].tobytes() for place in range(width - 1)]
            highest += [digits[:, width - 1].tobytes()] if width else []
        heads.append(_COLUMN.pack(int(keys[0]), 0))
        deflate = zlib.compressobj(1, zlib.DEFLATED, -15, 8, zlib.Z_HUFFMAN_ONLY)
        payload = b"".join([*heads, *planes, deflate.compress(b"".join(highest)), deflate.flush()])
        blocks.append(encode_block(kind, payload, num_columns=len(heads), num_rows=len(keys)))
    return b"".join(blocks)


def encode_block(kind: int, payload: bytes, *, num_columns: int = 0, num_rows: int = 0) -> bytes:
    """A block with its header and checksum."""
    head = _HEADER.pack(_MAGIC, kind, num_columns, 0, num_rows, len(payload), 0)
    checksum = zlib.crc32(payload, zlib.crc32(head))
    return _HEADER.pack(_MAGIC, kind, num_columns, 0, num_rows, len(payload), checksum) + payload


def _fill(block: Block, columns: Sequence[NDArray[Any]]) -> None:
    """Read the columns of a block into arrays. ValueError when they do not fit their header."""
    is_plain, is_raw = block.kind in (PLAIN_ROWS, PLAIN_VISITS), block.kind == RAW_ROWS
    if block.num_columns != len(columns) + (not is_plain):
        raise ValueError(f"a block has {block.num_columns} columns")
    place, size = block.num_columns * _COLUMN.size, block.num_rows
    # Of many rows some column differs: a block that says otherwise is made to fill memory.
    if place > len(block.payload) or size > max(8 * len(block.payload), _FEW_ROWS):
        raise ValueError("a block is shorter than its columns")
    heads = list(_COLUMN.iter_unpack(block.payload[:place]))
    widths = [width for _, width in heads[: len(columns)]]
    num_raw = sum(widths) if is_plain or is_raw else sum(max(width - 1, 0) for width in widths)
    planes = [block.payload[start : start + size] for start in range(place, place + num_raw * size, size)]
    highest: list[Any] = []
    if not (is_plain or is_raw):
        plane = zlib.decompressobj(-15).decompress(block.payload[place + num_raw * size :], 8 * size + 1)
        highest = [plane[start : start + size] for start in range(0, len(plane), size or 1)]
    for column, width, (least, _) in zip(columns, widths, heads, strict=False):
        digits = column.view(np.uint8).reshape(size, column.itemsize)
        digits[:] = 0
        for digit in range(width):
            source = highest if highest and digit == width - 1 else planes
            digits[:, digit] = np.frombuffer(source.pop(0), np.uint8)
        unsigned = column.view(f"<u{column.itemsize}")
        unsigned += unsigned.dtype.type(least & int(np.iinfo(unsigned.dtype).max))
    if size and not is_plain:
        columns[0][0] = heads[-1][0]
        np.cumsum(columns[0], out=columns[0])


def decode_rows(blocks: Sequence[Block]) -> tuple[Rows, int]:
    """The rows of blocks, and how many blocks were of no use."""
    number = sum(min(block.num_rows, MAX_ROWS) for block in blocks)
    rows = Rows(*(np.empty(number, kind) for kind in _OF_ROWS))
    place, num_bad = 0, 0
    for block in blocks:
        part = rows.part(slice(place, place + block.num_rows))
        try:
            _fill(block, part.columns())
            if block.kind != PLAIN_ROWS:
                np.add(part.sums, part.lasts, out=part.sums)
                np.add(part.last_steps, part.first_steps, out=part.last_steps)
            if not ((part.keys[1:] > part.keys[:-1]).all() and (part.counts > 0).all()):
                raise ValueError("rows are not in order, or were never seen")
            place += block.num_rows
        except (ValueError, IndexError, zlib.error):
            num_bad += 1
    return rows.part(slice(place)), num_bad


def decode_visits(block: Block) -> Visits:
    """The visits of a block. Raises ValueError, IndexError or zlib.error for a block made to do harm."""
    visits = Visits(*(np.empty(min(block.num_rows, MAX_ROWS), kind) for kind in _OF_VISITS))
    _fill(block, visits)
    return visits


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
