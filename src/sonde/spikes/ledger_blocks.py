"""Ledger samples: their 64-bit keys, their data as columns, and columns as checksummed blocks
(docs/formats/ledger.md). Pure.

    key       15 bits of dataset and 48 of number, or 63 bits of a hash
    header    magic, kind, number of columns, number of rows, bytes of payload, CRC-32 of all of it
    payload   per column its least value and the bytes that the differences to it need; those bytes,
              plane by plane; the highest planes, deflated

The files are handled in ledger.py. A sample has the name that the loop gives it: a pair of dataset
and number, a number, or a text. A sample without a name is identified by its content: a hash of its
tokens, as an array of uint64, as a number beyond 48 bits, or as a text of `#` and 16 hexadecimal
digits. The meaning of keys is written to the ledger once, as names.

Keys are sorted and delta-encoded. The highest byte of a column carries little information and
compresses well with a Huffman code: a sample that was seen twice and is known by 63 bits of its
content takes 12.4 bytes, of which its key takes 5.2. Torn or changed data is skipped: a reader
looks for the next magic.
"""

import hashlib
import json
import mmap
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROWS: Final = 7
"""Rows of samples, sorted by key, encoded so that samples seen only once are small."""
VISITS: Final = 8
"""Samples as they came (key, step, excess), sorted by key and then by time."""
REWIND: Final = 3
"""Earlier visits count only up to a step, because a restart went back to it."""
NAMES: Final = 4
"""JSON: the meaning of the keys."""
BASE: Final = 5
"""JSON: which journal continues this file."""
PLAIN_ROWS: Final = 1
"""Rows in the original format, with plain columns."""
PLAIN_VISITS: Final = 2
"""Visits in the original format, with plain columns."""
RAW_ROWS: Final = 6
"""Rows in the current format, but without deflated planes."""
KINDS_OF_ROWS: Final = (ROWS, PLAIN_ROWS, RAW_ROWS)
KINDS_OF_VISITS: Final = (VISITS, PLAIN_VISITS)
UNIT: Final = 256
"""Excesses are stored as integer multiples of 1/256 of a deviation, so that sums do not depend on
their order.
"""
_MOST: Final = 32_767
MAX_ROWS: Final = 1 << 16
"""The maximum number of rows in a block."""
_FEW_ROWS: Final = 256
_MAGIC: Final = b"\x89SLg"
_HEADER: Final = struct.Struct("<4sBBHIII")
_COLUMN: Final = struct.Struct("<QB")
_OF_ROWS: Final = ("<u8", "<i4", "<i8", "<i4", "<i4", "<i4")
"""The data types of the columns of rows."""
_OF_VISITS: Final = ("<u8", "<i4", "<i4")
"""The data types of the columns of visits: half the memory takes half the time."""
_HASHED: Final = 1 << 63
_NUMBER_BITS: Final = 48
_MAX_DATASETS: Final = 1 << 15
_MAX_TEXTS: Final = 100_000
"""The maximum number of texts that are stored; beyond that only the hash is known."""
_MAX_TEXT: Final = 200
_HASH: Final = re.compile("#[0-9a-f]{16}")

Whole = NDArray[np.int32] | NDArray[np.int64]
Keys = NDArray[np.uint64]


class SampleKeys:
    """Converts sample names to keys and back."""

    def __init__(self) -> None:
        self.datasets: dict[str, int] = {}
        """The number of each dataset."""
        self.texts: dict[int, str] = {}
        """The text names of samples, by key."""
        self._news: dict[str, dict[str, Any]] = {}

    def of(self, ids: Any) -> tuple[Keys, NDArray[np.bool_]]:
        """Return the key of each sample, and a mask of real samples (a rank without data has a
        placeholder row named -1).
        """
        if hasattr(ids, "dtype"):
            ids = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids)
            if ids.dtype == np.uint64:
                return ids | np.uint64(_HASHED), np.ones(len(ids), bool)
            return self._of_numbers("", ids.astype(np.int64))
        if set(map(type, ids)) == {tuple} and set(map(len, ids)) == {2}:
            names = {id_[0] for id_ in ids}
            numbers = [id_[1] for id_ in ids]
            if len(names) == 1 and set(map(type, numbers)) == {int}:
                return self._of_numbers(str(names.pop()), np.array(numbers, np.int64))
        keys = [self._of_one(id_) for id_ in ids]
        good = np.array([key is not None for key in keys], bool)
        return np.array([key or 0 for key in keys], np.uint64), good

    def news(self) -> dict[str, dict[str, Any]]:
        """Return the names added since the last call, as plain data."""
        news = self._news
        self._news = {}
        return news

    def all_names(self) -> dict[str, dict[str, Any]]:
        """Return all names, as plain data."""
        return {
            "datasets": dict(self.datasets),
            "texts": {f"{key:016x}": text for key, text in self.texts.items()},
        }

    def learn(self, names: Mapping[str, Any]) -> None:
        """Add names that were read from a file. Raises various errors for a damaged document."""
        for name, number in names.get("datasets", {}).items():
            self.datasets[str(name)] = int(number) % _MAX_DATASETS
        self.texts |= {
            int(key, 16): str(text)[:_MAX_TEXT] for key, text in names.get("texts", {}).items()
        }

    def name_of(self, key: int) -> tuple[str, int | str]:
        """Return the dataset and number of a key, or an empty dataset and a text or `#` and a
        hash.
        """
        if key & _HASHED:
            return "", self.texts.get(key, f"#{key & (_HASHED - 1):016x}")
        number = key >> _NUMBER_BITS
        sample = key & ((1 << _NUMBER_BITS) - 1)
        for name, code in self.datasets.items():
            if code == number:
                return name, sample
        return f"dataset {number}", sample

    def code(self, dataset: str) -> int:
        """Return the number of a dataset, assigning one if it is new."""
        code = self.datasets.get(dataset)
        if code is None:
            code = self.datasets[dataset] = (
                max(self.datasets.values(), default=-1) + 1
            ) % _MAX_DATASETS
            self._news.setdefault("datasets", {})[dataset] = code
        return code

    def _of_numbers(
        self, dataset: str, numbers: NDArray[np.int64]
    ) -> tuple[Keys, NDArray[np.bool_]]:
        code = np.uint64(self.code(dataset) << _NUMBER_BITS)
        large = numbers >= 1 << _NUMBER_BITS
        return numbers.astype(np.uint64) | np.where(large, np.uint64(_HASHED), code), numbers >= 0

    def _of_one(self, sample_id: Any) -> int | None:
        """Return the key of a sample that is named by itself, or with its dataset."""
        dataset = ""
        name = sample_id
        is_sequence = isinstance(sample_id, Sequence) and not isinstance(sample_id, str)
        if is_sequence and len(sample_id) == 2:
            dataset, name = sample_id
        if isinstance(name, (int, np.integer)):
            keys, good = self._of_numbers(
                str(dataset), np.array([int(name) & (_HASHED - 1) if name >= 0 else -1])
            )
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


class SampleColumns(NamedTuple):
    """The history of samples, one row each, as columns in the order of the file. A single visit is
    a row too.
    """

    keys: Keys
    counts: Whole
    """How often each sample was seen."""
    sums: Whole
    """The sum of its excesses, in units of 1/256 deviation."""
    lasts: Whole
    """The last excess, in units of 1/256 deviation."""
    first_steps: Whole
    last_steps: Whole

    def part(self, places: Any) -> "SampleColumns":
        """Select some of the rows."""
        return SampleColumns(*(column[places] for column in self))


class Block(NamedTuple):
    """One block as read, with a valid checksum."""

    kind: int
    num_columns: int
    num_rows: int
    payload: memoryview


def whole(z: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return excesses in deviations as multiples of 1/256; what is not finite counts as the highest
    or lowest.
    """
    most = np.nan_to_num(np.rint(z * UNIT), nan=_MOST, posinf=_MOST, neginf=-_MOST)
    return most.clip(-_MOST, _MOST).astype(np.int64)


def visits(keys: Keys, steps: Whole, excesses: Whole) -> SampleColumns:
    """Return visits as rows."""
    return SampleColumns(
        keys, np.ones(len(keys), np.int32), excesses.astype(np.int64), excesses, steps, steps
    )


def together(parts: Sequence[SampleColumns]) -> SampleColumns:
    """Concatenate rows."""
    if not parts:
        return SampleColumns(*(np.zeros(0, kind) for kind in _OF_ROWS))
    return SampleColumns(*map(np.concatenate, zip(*parts, strict=True)))


def by_sample(rows: SampleColumns) -> SampleColumns:
    """Merge rows that come in order of time into one row per sample, sorted by key. The last excess
    is that of the last row.
    """
    rows = rows.part(np.argsort(rows.keys, kind="stable"))
    keys = rows.keys
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    if is_first.all():
        return rows
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(keys)) - 1
    counts, sums = (np.add.reduceat(column, first) for column in (rows.counts, rows.sums))
    first_steps = np.minimum.reduceat(rows.first_steps, first)
    return SampleColumns(
        keys[first], counts, sums, rows.lasts[last], first_steps, rows.last_steps[last]
    )


def encode_rows(rows: SampleColumns) -> bytes:
    """Encode sorted rows, one per sample, as blocks."""
    spans = rows.last_steps - rows.first_steps
    return _encode(
        ROWS, (rows.keys, rows.counts, rows.sums - rows.lasts, rows.lasts, rows.first_steps, spans)
    )


def encode_visits(rows: SampleColumns) -> bytes:
    """Encode visits, which come in order of time, as blocks sorted by key."""
    rows = rows.part(np.argsort(rows.keys, kind="stable"))
    return _encode(VISITS, (rows.keys, rows.last_steps, rows.lasts))


def _encode(kind: int, columns: Sequence[NDArray[Any]]) -> bytes:
    """Encode columns, of which the first are sorted keys, as blocks of at most MAX_ROWS rows."""
    blocks = []
    for start in range(0, len(columns[0]), MAX_ROWS):
        keys, *others = (column[start : start + MAX_ROWS] for column in columns)
        heads = []
        planes = []
        highest = []
        for column in (np.diff(keys, prepend=keys[:1]), *others):
            least = column.min().astype("<u8")  # negative values wrap around, and back
            values = column.astype("<u8") - least
            width = (int(values.max()).bit_length() + 7) // 8
            heads.append(_COLUMN.pack(int(least), width))
            digits = values.view(np.uint8).reshape(len(keys), 8)
            planes += [digits[:, place].tobytes() for place in range(width - 1)]
            if width:
                highest.append(digits[:, width - 1].tobytes())
        heads.append(_COLUMN.pack(int(keys[0]), 0))
        deflate = zlib.compressobj(1, zlib.DEFLATED, -15, 8, zlib.Z_HUFFMAN_ONLY)
        payload = b"".join([*heads, *planes, deflate.compress(b"".join(highest)), deflate.flush()])
        blocks.append(encode_block(kind, payload, num_columns=len(heads), num_rows=len(keys)))
    return b"".join(blocks)


def encode_block(kind: int, payload: bytes, *, num_columns: int = 0, num_rows: int = 0) -> bytes:
    """Return a block with its header and checksum."""
    head = _HEADER.pack(_MAGIC, kind, num_columns, 0, num_rows, len(payload), 0)
    checksum = zlib.crc32(payload, zlib.crc32(head))
    return _HEADER.pack(_MAGIC, kind, num_columns, 0, num_rows, len(payload), checksum) + payload


def encode_document(kind: int, document: Mapping[str, Any]) -> bytes:
    """Return a block with a JSON document."""
    return encode_block(kind, json.dumps(document).encode())


def decode(block: Block) -> SampleColumns:
    """Decode the rows or visits of a block. Raises ValueError, IndexError or zlib.error for a
    malicious block.
    """
    are_visits = block.kind in KINDS_OF_VISITS
    kinds = _OF_VISITS if are_visits else _OF_ROWS
    has_first_key = block.kind not in (PLAIN_ROWS, PLAIN_VISITS)
    num_heads = len(kinds) + 1 if has_first_key else len(kinds)
    heads = _heads_of(block, num_heads)
    planes = _planes_of(block, [width for _, width in heads[: len(kinds)]])
    columns = []
    for kind, (least, width) in zip(kinds, heads, strict=False):
        column = np.empty(min(block.num_rows, MAX_ROWS), kind)
        digits = column.view(np.uint8).reshape(block.num_rows, column.itemsize)
        digits[:] = 0
        for digit in range(width):
            digits[:, digit] = planes.next(is_highest=digit == width - 1)
        unsigned = column.view(f"<u{column.itemsize}")
        unsigned += unsigned.dtype.type(least & int(np.iinfo(unsigned.dtype).max))
        columns.append(column)
    if block.num_rows and has_first_key:
        columns[0][0] = heads[-1][0]
        np.cumsum(columns[0], out=columns[0])
    if are_visits:
        return visits(*columns)
    rows = SampleColumns(*columns)
    if has_first_key:  # the sum without the last, and the steps from the first to the last
        np.add(rows.sums, rows.lasts, out=rows.sums)
        np.add(rows.last_steps, rows.first_steps, out=rows.last_steps)
    if not ((rows.keys[1:] > rows.keys[:-1]).all() and (rows.counts > 0).all()):
        raise ValueError("rows are not in order, or were never seen")
    return rows


def _heads_of(block: Block, num_heads: int) -> list[tuple[int, int]]:
    """Return the least value of each column and its width in bytes, and after them the first key.
    Raises ValueError if the block cannot hold what it claims.
    """
    if block.num_columns != num_heads:
        raise ValueError(f"a block has {block.num_columns} columns")
    end = num_heads * _COLUMN.size
    # In many rows, some column always differs: a block that claims otherwise was made to exhaust
    # memory.
    if end > len(block.payload) or block.num_rows > max(8 * len(block.payload), _FEW_ROWS):
        raise ValueError("a block is shorter than its columns")
    return list(_COLUMN.iter_unpack(block.payload[:end]))


class _Planes(NamedTuple):
    """The bytes of all columns, in order: a plane holds one byte of every row."""

    plain: list[Any]
    highest: list[Any]
    """The planes of highest bytes, if they are deflated; empty if they are among the others."""

    def next(self, *, is_highest: bool) -> NDArray[np.uint8]:
        """Take the next plane: the highest one of a column, or another one."""
        planes = self.highest if self.highest and is_highest else self.plain
        return np.frombuffer(planes.pop(0), np.uint8)


def _planes_of(block: Block, widths: Sequence[int]) -> _Planes:
    """Cut the payload of a block, whose columns have these widths, into planes."""
    size = block.num_rows
    is_deflated = block.kind in (ROWS, VISITS)
    num_plain = sum(widths)
    if is_deflated:  # the highest plane of each column comes after all others
        num_plain = sum(max(width - 1, 0) for width in widths)
    start = block.num_columns * _COLUMN.size
    end = start + num_plain * size
    plain = [block.payload[place : place + size] for place in range(start, end, size)]
    if not is_deflated:
        return _Planes(plain, [])
    inflated = zlib.decompressobj(-15).decompress(block.payload[end:], 8 * size + 1)
    highest = [inflated[place : place + size] for place in range(0, len(inflated), size or 1)]
    return _Planes(plain, highest)


def scan_blocks(data: bytes | mmap.mmap) -> Iterator[Block | None]:
    """Yield the blocks of a file, and None for each damaged stretch."""
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
