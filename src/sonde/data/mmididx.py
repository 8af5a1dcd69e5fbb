"""The `MMIDIDX` index of fairseq and Megatron: reads and writes both dialects, and validates what
it reads.

A corpus is two files: `X.bin` holds all tokens back to back, `X.idx` says where each sequence is.
Little endian:

    9 bytes  magic  MMIDIDX\\0\\0
    u64      version, always 1
    u8       code of the token type (the dialects agree except where noted below)
    u64      N, the number of sequences
    u64      D, the number of document entries          Megatron only
    N x i32  tokens in each sequence
    N x i64  byte offset of each sequence in the `.bin`
    D x i64  document boundaries, as sequence numbers   Megatron only
    N x i8   modes                                      Megatron, multimodal corpora only

Magic and version are the same in both dialects, so the file size tells them apart: 26 + 12 N bytes
is fairseq's; anything longer must be 34 + 12 N + 8 D (+ N) bytes and is Megatron's.

`read_index` checks the header, the two file sizes and 512 entries spread over the index, and
refuses inconsistent files before anything is mapped. It takes the same few milliseconds for a
hundred sequences and for a hundred million.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sonde.errors import DamagedFile
from sonde.records.files import open_regular

Layout: TypeAlias = Literal["fairseq", "megatron"]
"""The two dialects of the index."""

_MAGIC: Final = b"MMIDIDX\x00\x00"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<9sQBQ")
_COUNT: Final = struct.Struct("<Q")
_NUM_SPOT_CHECKS: Final = 512
_CHUNK_ENTRIES: Final = 1 << 20

_SHARED_CODES: Final = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 8: "<u2"}
_CODES: Final[dict[Layout, dict[int, str]]] = {
    "fairseq": {**_SHARED_CODES, 7: "<f8", 9: "<u4", 10: "<u8"},
    "megatron": {**_SHARED_CODES, 7: "<f4"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """What the header of an index says, after it passed its checks."""

    layout: Layout
    """The dialect of the index."""
    dtype: np.dtype[np.generic]
    """Type of one token in the `.bin`."""
    num_samples: int
    """Number of samples, which the formats call sequences."""
    num_documents: int
    """Number of entries in the document index, one more than there are documents; 0 in fairseq's
    dialect.
    """
    num_bin_bytes: int
    """Size of the `.bin` in bytes."""

    @property
    def sizes_at(self) -> int:
        """Byte offset of the sequence sizes."""
        return _HEADER.size + (_COUNT.size if self.layout == "megatron" else 0)

    @property
    def pointers_at(self) -> int:
        """Byte offset of the sequence pointers."""
        return self.sizes_at + 4 * self.num_samples

    @property
    def documents_at(self) -> int:
        """Byte offset of the document boundaries."""
        return self.pointers_at + 8 * self.num_samples


def token_dtype(vocab_size: int, layout: Layout = "fairseq") -> np.dtype[np.generic]:
    """Return the smallest type that the dialect and its home system use for this vocabulary
    size.
    """
    if vocab_size < 65500:
        return np.dtype("<u2")
    if layout == "megatron":
        return np.dtype("<i4")
    return np.dtype("<u4") if vocab_size < 4294967295 else np.dtype("<i8")


def read_index(index_path: Path, bin_path: Path) -> Index:
    """Check an index against its own size and its `.bin`. Raises DamagedFile with the reason if
    they disagree.
    """
    try:
        num_bin_bytes = bin_path.stat().st_size
        with open_regular(index_path, follow=True) as file:
            index = _read_header(file, index_path, num_bin_bytes)
            _spot_check(file, index, index_path, bin_path)
    except FileNotFoundError as error:
        raise DamagedFile(
            f"{error.filename} is missing", hint="a corpus is a .bin and its .idx"
        ) from None
    return index


def write_index(
    file: BinaryIO,
    sizes: Sequence[NDArray[np.int32]],
    *,
    dtype: np.dtype[np.generic],
    layout: Layout = "fairseq",
) -> None:
    """Write the index of sequences whose sizes come in chunks. `token_dtype` returns the type of
    their tokens.

    In Megatron's dialect every sequence is its own document.
    """
    codes = {np.dtype(name): code for code, name in reversed(_CODES[layout].items())}
    num_samples = sum(map(len, sizes))
    file.write(_HEADER.pack(_MAGIC, _VERSION, codes[dtype], num_samples))
    if layout == "megatron":
        file.write(_COUNT.pack(num_samples + 1))
    file.writelines(chunk.astype("<i4").tobytes() for chunk in sizes)
    at = 0
    for chunk in sizes:
        # Keep the running total in int64 on every platform: int32 overflows at 2 GiB (a bug fairseq
        # and Megatron had).
        ends = at + np.cumsum(chunk, dtype=np.int64) * dtype.itemsize
        starts = ends - chunk.astype(np.int64) * dtype.itemsize
        file.write(starts.astype("<i8").tobytes())
        at = int(ends[-1]) if len(ends) else at
    if layout == "megatron":
        file.writelines(
            np.arange(start, min(start + _CHUNK_ENTRIES, num_samples + 1), dtype="<i8").tobytes()
            for start in range(0, num_samples + 1, _CHUNK_ENTRIES)
        )


def _read_header(file: BinaryIO, path: Path, num_bin_bytes: int) -> Index:
    num_bytes = os.fstat(file.fileno()).st_size
    head = file.read(_HEADER.size + _COUNT.size)
    if not head.startswith(_MAGIC):
        raise DamagedFile(
            f"{path} is not an MMIDIDX index",
            cause=f"it begins with {head[:9]!r}",
            hint="fairseq-preprocess writes one with --dataset-impl mmap, `sonde prepare` always",
        )
    if len(head) < _HEADER.size:
        raise DamagedFile(f"{path} is truncated", cause=f"{num_bytes} bytes do not hold the header")
    _, version, code, num_samples = _HEADER.unpack_from(head)
    if version != _VERSION:
        raise DamagedFile(f"{path} has version {version}", cause="only version 1 was ever written")
    layout, num_documents = _tell_layout(path, head, num_samples, num_bytes)
    if code not in _CODES[layout]:
        raise DamagedFile(f"{path} names token type {code}, which {layout}'s dialect does not have")
    return Index(
        layout=layout,
        dtype=np.dtype(_CODES[layout][code]),
        num_samples=num_samples,
        num_documents=num_documents,
        num_bin_bytes=num_bin_bytes,
    )


def _tell_layout(path: Path, head: bytes, num_samples: int, num_bytes: int) -> tuple[Layout, int]:
    expected = _HEADER.size + 12 * num_samples
    if num_bytes == expected:
        return "fairseq", 0
    if num_bytes >= expected + _COUNT.size and len(head) >= _HEADER.size + _COUNT.size:
        num_documents = _COUNT.unpack_from(head, _HEADER.size)[0]
        megatron = expected + _COUNT.size + 8 * num_documents
        if num_bytes in (megatron, megatron + num_samples):
            return "megatron", num_documents
    state = "truncated" if num_bytes < expected else "of the wrong size"
    raise DamagedFile(
        f"{path} is {state}",
        cause=(
            f"{num_samples} sequences take {expected} bytes (fairseq) or {expected + 8} and more"
            f" (Megatron), the file has {num_bytes}"
        ),
        hint="copy it again, or write it again from the text with `sonde prepare`",
    )


def _spot_check(file: BinaryIO, index: Index, index_path: Path, bin_path: Path) -> None:
    """Check the offsets of entries spread over the index, including the first and the last."""
    count = index.num_samples
    end = index.num_bin_bytes
    if count == 0 and end:
        raise DamagedFile(
            f"{index_path} is stale: it names no sequence but {bin_path.name} has {end} bytes"
        )
    for entry in sorted(
        {int(place) for place in np.linspace(0, count - 1, min(count, _NUM_SPOT_CHECKS))}
    ):
        size, pointer = _entry(file, index, entry)
        following = _entry(file, index, entry + 1)[1] if entry + 1 < count else end
        starts_well = pointer == 0 if entry == 0 else pointer >= 0
        if not starts_well or size < 0 or pointer + size * index.dtype.itemsize != following:
            raise DamagedFile(
                f"{index_path} is damaged, or does not belong to {bin_path.name}",
                cause=(
                    f"sequence {entry} has {size} tokens from byte {pointer} on, and what follows"
                    f" begins at byte {following}"
                ),
                hint=(
                    "one of the two is truncated or stale, or the writer counted in 32 bits"
                    " (fairseq with numpy 2 and several workers); write both again from the text"
                    " with `sonde prepare`"
                ),
            )


def _entry(file: BinaryIO, index: Index, entry: int) -> tuple[int, int]:
    descriptor = file.fileno()
    size = os.pread(descriptor, 4, index.sizes_at + 4 * entry)
    pointer = os.pread(descriptor, 8, index.pointers_at + 8 * entry)
    return int.from_bytes(size, "little", signed=True), int.from_bytes(
        pointer, "little", signed=True
    )
