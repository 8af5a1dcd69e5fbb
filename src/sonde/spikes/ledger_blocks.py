"""Samples of the ledger: their 64-bit keys, what is known of them as columns, and columns as blocks with checksums (docs/formats/ledger.md). Pure; the files are ledger.py's.

    key       15 bits of dataset and 48 of number, or 63 bits of a hash
    header    magic, kind, number of columns, number of rows, bytes of payload, CRC-32 of all of it
    payload   per column its least value and the bytes that the differences to it need; those bytes, plane by plane; the highest planes, deflated

A sample is called what the loop calls it: a pair of dataset and number, a number, a text; or, where it has no name, by its content: a hash of its
tokens, as an array of uint64, as a number beyond 48 bits, or as a text of `#` and 16 hexadecimal digits. What a key means goes into the ledger once, as names.

Keys are in order, so each is told as its distance from the one before. The highest byte of a column says little, and a Huffman code makes that little
small: a sample seen twice and known by 63 bits of its content takes 12.4 bytes, of which its key takes 5.2. Whatever is torn or was changed is passed over: a reader looks for the next magic.
"""

import hashlib
import mmap
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
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
_HASHED: Final = 1 << 63
_NUMBER_BITS: Final = 48
_MAX_DATASETS: Final = 1 << 15
_MAX_TEXTS: Final = 100_000
"""Texts that are remembered; of more there is only the hash."""
_MAX_TEXT: Final = 200
_HASH: Final = re.compile("#[0-9a-f]{16}")

Whole = NDArray[np.int32] | NDArray[np.int64]
Keys = NDArray[np.uint64]


@final
class SampleKeys:
    """Makes keys of names, and names of keys."""

    def __init__(self) -> None:
        self.datasets: dict[str, int] = {}
        """The number of every dataset."""
        self.texts: dict[int, str] = {}
        """By key: what the loop called the sample, where that is a text."""
        self._news: dict[str, dict[str, Any]] = {}

    def of(self, ids: Any) -> tuple[Keys, NDArray[np.bool_]]:
        """The key of each sample, and which of them are samples at all (a rank without data has a row called -1)."""
        if hasattr(ids, "dtype"):
            ids = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids)
            if ids.dtype == np.uint64:
                return ids | np.uint64(_HASHED), np.ones(len(ids), bool)
            return self._of_numbers("", ids.astype(np.int64))
        if set(map(type, ids)) == {tuple} and set(map(len, ids)) == {2}:
            names, numbers = {one[0] for one in ids}, [one[1] for one in ids]
            if len(names) == 1 and set(map(type, numbers)) == {int}:
                return self._of_numbers(str(names.pop()), np.array(numbers, np.int64))
        keys = [self._of_one(one) for one in ids]
        good = np.array([key is not None for key in keys], bool)
        return np.array([key or 0 for key in keys], np.uint64), good

    def news(self) -> dict[str, dict[str, Any]]:
        """Names that were given since this was last asked, as plain data."""
        news, self._news = self._news, {}
        return news

    def all_names(self) -> dict[str, dict[str, Any]]:
        """All names, as plain data."""
        return {"datasets": dict(self.datasets), "texts": {f"{key:016x}": text for key, text in self.texts.items()}}

    def learn(self, names: Mapping[str, Any]) -> None:
        """Take in names that were written. Raises what a damaged document makes it raise."""
        for name, number in names.get("datasets", {}).items():
            self.datasets[str(name)] = int(number) % _MAX_DATASETS
        self.texts |= {int(key, 16): str(text)[:_MAX_TEXT] for key, text in names.get("texts", {}).items()}

    def name_of(self, key: int) -> tuple[str, int | str]:
        """Dataset and number, or an empty dataset and a text, or `#` and a hash."""
        if key & _HASHED:
            return "", self.texts.get(key, f"#{key & (_HASHED - 1):016x}")
        number = key >> _NUMBER_BITS
        dataset = next((name for name, one in self.datasets.items() if one == number), f"dataset {number}")
        return dataset, key & ((1 << _NUMBER_BITS) - 1)

    def code(self, dataset: str) -> int:
        """The number of a dataset; a new one is given one."""
        code = self.datasets.get(dataset)
        if code is None:
            code = self.datasets[dataset] = (max(self.datasets.values(), default=-1) + 1) % _MAX_DATASETS
            self._news.setdefault("datasets", {})[dataset] = code
        return code

    def _of_numbers(self, dataset: str, numbers: NDArray[np.int64]) -> tuple[Keys, NDArray[np.bool_]]:
        code = np.uint64(self.code(dataset) << _NUMBER_BITS)
        large = numbers >= 1 << _NUMBER_BITS
        return numbers.astype(np.uint64) | np.where(large, np.uint64(_HASHED), code), numbers >= 0

    def _of_one(self, one: Any) -> int | None:
        dataset, name = one if isinstance(one, Sequence) and not isinstance(one, str) and len(one) == 2 else ("", one)
        if isinstance(name, (int, np.integer)):
            keys, good = self._of_numbers(str(dataset), np.array([int(name) & (_HASHED - 1) if name >= 0 else -1]))
            return int(keys[0]) if good[0] else None
        text = f"{dataset}:{name}" if dataset else str(name)
        if _HASH.fullmatch(text):
            return int(text[1:], 16) | _HASHED
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
        key = int.from_bytes(digest, "little") | _HASHED
        if key not in self.texts and len(self.texts) < _MAX_TEXTS:
            self.texts[key] = text[:_MAX_TEXT]
            self._news.setdefault("texts", {})[f"{key:016x}"] = text[:_MAX_TEXT]
        return key


class Rows(NamedTuple):
    """What is known of samples, a row each: columns in the order of the file. One visit of a sample is a row too."""

    keys: Keys
    counts: Whole
    """How often a sample was seen."""
    sums: Whole
    """The sum of its excesses, in units,"""
    lasts: Whole
    """and the last of them."""
    first_steps: Whole
    last_steps: Whole

    def part(self, places: Any) -> "Rows":
        """Some of them."""
        return Rows(*(column[places] for column in self))


class Block(NamedTuple):
    """One block as it was read; its checksum was right."""

    kind: int
    num_columns: int
    num_rows: int
    payload: memoryview


def visits(keys: Keys, steps: Whole, excesses: Whole) -> Rows:
    """Samples as they came, as rows."""
    return Rows(keys, np.ones(len(keys), np.int32), excesses.astype(np.int64), excesses, steps, steps)


def together(parts: Sequence[Rows]) -> Rows:
    """All rows of the parts, one after another."""
    if not parts:
        return Rows(*(np.zeros(0, kind) for kind in _OF_ROWS))
    return Rows(*map(np.concatenate, zip(*parts, strict=True)))


def in_order(rows: Rows) -> Rows:
    """Ordered by key; those of the same key as they came."""
    return rows.part(np.argsort(rows.keys, kind="stable"))


def by_sample(rows: Rows) -> Rows:
    """One row a sample, ordered by key, of rows that come in order of time: the last excess is that of the last one."""
    rows = in_order(rows)
    keys = rows.keys
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    if is_first.all():
        return rows
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(keys)) - 1
    counts, sums = (np.add.reduceat(column, first) for column in (rows.counts, rows.sums))
    first_steps = np.minimum.reduceat(rows.first_steps, first)
    return Rows(keys[first], counts, sums, rows.lasts[last], first_steps, rows.last_steps[last])


def encode_rows(rows: Rows) -> bytes:
    """Rows in order, each sample once, as blocks."""
    spans = rows.last_steps - rows.first_steps
    return _encode(ROWS, (rows.keys, rows.counts, rows.sums - rows.lasts, rows.lasts, rows.first_steps, spans))


def encode_visits(rows: Rows) -> bytes:
    """Visits in order as blocks."""
    return _encode(VISITS, (rows.keys, rows.last_steps, rows.lasts))


def _encode(kind: int, columns: Sequence[NDArray[Any]]) -> bytes:
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


def decode(block: Block) -> Rows:
    """The rows or visits of a block. Raises ValueError, IndexError or zlib.error for a block made to do harm."""
    are_visits = block.kind in (VISITS, PLAIN_VISITS)
    kinds = _OF_VISITS if are_visits else _OF_ROWS
    columns = [np.empty(min(block.num_rows, MAX_ROWS), kind) for kind in kinds]
    _fill(block, columns)
    if are_visits:
        return visits(*columns)
    rows = Rows(*columns)
    if block.kind != PLAIN_ROWS:
        np.add(rows.sums, rows.lasts, out=rows.sums)
        np.add(rows.last_steps, rows.first_steps, out=rows.last_steps)
    if not ((rows.keys[1:] > rows.keys[:-1]).all() and (rows.counts > 0).all()):
        raise ValueError("rows are not in order, or were never seen")
    return rows


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
