"""The memory-mapped reader of one `.bin` and `.idx`, and the sidecar with what the shared format
cannot express.

    train.en.json        sizes, checksums, tokenizer and its digest, the text it was made from
                         (docs/formats/sidecar.md)
    train.en.lines.npy   int64 rows (first sample, first line): from that sample on, lines count up
                         by one

`tokens[i]` is a read-only numpy view into the page cache: stateless random access without copies.
Opening checks the header, sizes and some spots and maps the files. It reads no tokens and no index,
so a hundred million samples open in milliseconds and use no memory until they are read. A TokenFile
pickles as its path: DataLoader workers map the same pages again. Reading a sequence takes 0.7 µs
(benchmarks/data.py).

With a sidecar, sample 1734 of `train.en` is known to be line 1741 of `corpus.en.gz`. A corpus of
fairseq or Megatron has none and can still be opened, but without line numbers. The sidecar is
written last and read first: opening fails if the `.bin` or `.idx` beside it is not the one it was
written for. For that it keeps two digests per file: SHA-256 of every byte, and SHA-256 of 64 blocks
spread over the file. The first opening in a process checks every byte of files of up to 64 MB (45
ms) and the blocks of larger ones (under a millisecond). `verify`, and `sonde train` when it starts,
check every byte of all files (0.7 s per GB).
"""

import dataclasses
import hashlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sonde.data.mmididx import Index, read_index
from sonde.data.tokenizer import Tokenizer
from sonde.errors import DamagedFile, SettingError
from sonde.records.checksums import file_digest
from sonde.records.files import open_regular, read_small, write_file
from sonde.records.seal import seal, unseal_document
from sonde.records.values import decode, encode

_NUM_SPOTS: Final = 64
_SPOT_BYTES: Final = 4096
_WHOLE_BYTES: Final = 64 << 20
_checked: set[tuple[object, ...]] = set()
"""Files that this process has already checked, with their state at that time."""
_CHUNK_ENTRIES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FileStamp:
    """Identifies the content of a file."""

    num_bytes: int
    """Size of the file."""
    sha256: str
    """SHA-256 of all bytes."""
    spot_sha256: str
    """SHA-256 of 64 blocks of 4 kB spread over the file, including the first and the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerStamp:
    """The tokenizer that the data was made with."""

    kind: str
    """`hf`, `sentencepiece`, `word` or `bytes`."""
    file: str
    """Its file name, in the same directory."""
    digest: str
    """SHA-256 of that file."""
    vocab_size: int
    """Number of ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sidecar:
    """The content of a sidecar file."""

    format: Literal["sonde-tokens"] = "sonde-tokens"
    """What the file is."""
    version: Literal[1] = 1
    """Version of the format."""
    split: str
    """`train`, `valid`, …"""
    language: str
    """Language of this file."""
    languages: tuple[str, ...]
    """All languages of the split, source first."""
    num_samples: int
    """Number of samples."""
    num_tokens: int
    """Number of tokens, including end-of-sequence tokens."""
    source: str
    """The text file it was made from; empty if sonde did not make it."""
    num_source_lines: int
    """Number of lines of that text."""
    left_out: dict[str, int]
    """Number of samples left out, by reason."""
    tokenizer: TokenizerStamp
    """The tokenizer of the data."""
    bin: FileStamp
    """Stamp of the token file."""
    idx: FileStamp
    """Stamp of the index."""
    lines: FileStamp
    """Stamp of the map from samples to lines."""


def beside(prefix: Path, ending: str) -> Path:
    """Return the path of one of the files of `prefix`: `.bin`, `.idx`, `.json` or `.lines.npy`."""
    return prefix.with_name(prefix.name + ending)


def stamp_tokenizer(tokenizer: Tokenizer, file: str) -> TokenizerStamp:
    """Return the stamp of a tokenizer stored in `file`."""
    digest = hashlib.sha256(tokenizer.payload).hexdigest()
    return TokenizerStamp(
        kind=tokenizer.kind, file=file, digest=digest, vocab_size=tokenizer.vocab_size
    )


def stamp_file(path: Path, *, only_spots: bool = False) -> FileStamp:
    """Return the stamp of a file. With `only_spots`, the digest of the spots stands for that of all
    bytes.
    """
    spots = _spot_digest(path)
    sha256 = spots if only_spots else file_digest(path, follow=True)
    return FileStamp(num_bytes=path.stat().st_size, sha256=sha256, spot_sha256=spots)


def write_sidecar(prefix: Path, sidecar: Sidecar) -> None:
    """Write the sidecar of `prefix` atomically."""
    write_file(beside(prefix, ".json"), seal(encode(dataclasses.asdict(sidecar))))


def read_sidecar(prefix: Path) -> Sidecar | None:
    """Return the sidecar of `prefix`, or None if there is none. Raises DamagedFile if it cannot be
    parsed.
    """
    path = beside(prefix, ".json")
    try:
        return msgspec.convert(decode(unseal_document(read_small(path, follow=True))), Sidecar)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise DamagedFile(
            f"{path} is not a sidecar of tokens that this sonde can read",
            cause=str(error),
            hint="it is damaged, or a newer sonde wrote it",
        ) from None


def check_stamp(path: Path, stamp: FileStamp, *, every_byte: bool = False) -> None:
    """Raise DamagedFile if `path` is not the file that the stamp was taken of.

    Reads spots of a large file, unless `every_byte` is set. A file that has not changed since its
    last check in this process is then not read again.
    """
    hint = "one of the files was replaced or cut; write them again with `sonde prepare`"
    try:
        found = path.stat()
    except FileNotFoundError:
        raise DamagedFile(f"{path} is missing", hint=hint) from None
    if found.st_size != stamp.num_bytes:
        raise DamagedFile(
            f"{path} is {'truncated' if found.st_size < stamp.num_bytes else 'stale'}",
            cause=f"it has {found.st_size} bytes, its sidecar says {stamp.num_bytes}",
            hint=hint,
        )
    known = (found.st_dev, found.st_ino, found.st_mtime_ns, stamp)
    if known in _checked and not every_byte:
        return
    if every_byte or found.st_size <= _WHOLE_BYTES:
        is_same = file_digest(path, follow=True) == stamp.sha256
    else:
        is_same = _spot_digest(path) == stamp.spot_sha256
    if not is_same:
        raise DamagedFile(
            f"{path} is stale",
            cause="its bytes are not those its sidecar was written for",
            hint=hint,
        )
    _checked.add(known)


def find_line(starts: NDArray[np.int64], sample: int) -> int:
    """Return the line (starting at 1) of `sample`, given the rows (first sample, first line)."""
    row = int(np.searchsorted(starts[:, 0], sample, side="right")) - 1
    return int(starts[row, 1]) + sample - int(starts[row, 0])


def line_starts(left_out_lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return rows (first sample, first line) for a text without the 0-based, ascending
    `left_out_lines`.
    """
    number = np.arange(1, len(left_out_lines) + 1, dtype=np.int64)
    rows = np.stack([left_out_lines - number + 1, left_out_lines + 2], axis=1)
    rows = np.concatenate([np.array([[0, 1]], dtype=np.int64), rows])
    # Consecutive left-out lines give several rows for one sample; the last one is correct.
    keep = np.append(np.diff(rows[:, 0]) > 0, True)
    return np.ascontiguousarray(rows[keep])


def _spot_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path, follow=True) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        digest.update(num_bytes.to_bytes(8, "little"))
        last = max(0, num_bytes - _SPOT_BYTES)
        for offset in sorted({last * spot // (_NUM_SPOTS - 1) for spot in range(_NUM_SPOTS)}):
            digest.update(os.pread(file.fileno(), _SPOT_BYTES, offset))
    return digest.hexdigest()


class TokenFile:
    """All samples of one language, by number."""

    def __init__(self, prefix: Path | str) -> None:
        self.prefix = Path(prefix)
        """Path without `.bin` and `.idx`."""
        self.sidecar: Sidecar | None = read_sidecar(self.prefix)
        """The sidecar that sonde wrote; None for a corpus of another system."""
        self.index: Index = read_index(beside(self.prefix, ".idx"), beside(self.prefix, ".bin"))
        """The layout of the index."""
        self._check()
        index = self.index
        entries = _map(beside(self.prefix, ".idx"))
        self.sizes: NDArray[np.int32] = np.frombuffer(
            entries, "<i4", index.num_samples, index.sizes_at
        )
        """Length of each sequence in tokens."""
        self.pointers: NDArray[np.int64] = np.frombuffer(
            entries, "<i8", index.num_samples, index.pointers_at
        )
        """Byte offset of each sequence."""
        self.documents: NDArray[np.int64] = np.frombuffer(
            entries, "<i8", index.num_documents, index.documents_at
        )
        """First sequence of each document, then the number of sequences; empty in fairseq's
        dialect.
        """
        self.flat: NDArray[np.generic] = np.frombuffer(
            _map(beside(self.prefix, ".bin")), index.dtype
        )
        """All tokens, sequence after sequence."""
        # A memoryview returns Python integers and accepts unaligned data: 4 times faster than
        # indexing the array.
        view = memoryview(entries)
        self._sizes = view[index.sizes_at : index.pointers_at].cast("i")
        self._pointers = view[index.pointers_at : index.documents_at].cast("q")
        self._itemsize = index.dtype.itemsize

    def __len__(self) -> int:
        return self.index.num_samples

    def __getitem__(self, sample: int) -> NDArray[np.generic]:
        start = self._pointers[sample] // self._itemsize
        return self.flat[start : start + self._sizes[sample]]

    def __reduce__(self) -> tuple[type["TokenFile"], tuple[str]]:
        return TokenFile, (str(self.prefix),)

    @property
    def num_tokens(self) -> int:
        """Total number of tokens."""
        return len(self.flat)

    def spans(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where each of `samples` begins in `flat`, and its length."""
        return self.pointers[samples] // self._itemsize, self.sizes[samples].astype(np.int64)

    def origin(self, sample: int) -> tuple[str, int]:
        """Return the text file and the line (starting at 1) that `sample` was made from."""
        if self.sidecar is None:
            raise SettingError(
                f"{self.prefix} does not know its text",
                hint="only corpora that `sonde prepare` wrote carry it",
            )
        if not 0 <= sample < len(self):
            raise SettingError(
                f"there is no sample {sample} in {self.prefix}", hint=f"it has {len(self)}"
            )
        path = beside(self.prefix, ".lines.npy")
        check_stamp(path, self.sidecar.lines)
        starts = np.load(path, mmap_mode="r", allow_pickle=False)
        return self.sidecar.source, find_line(starts, sample)

    def verify(self) -> None:
        """Check every byte against the sidecar's checksums, and every entry of the index against
        the next.
        """
        self._check(every_byte=True)
        for first in range(0, len(self), _CHUNK_ENTRIES):
            sizes = self.sizes[first : first + _CHUNK_ENTRIES].astype(np.int64)
            pointers = self.pointers[first : first + _CHUNK_ENTRIES + 1]
            ends = pointers[: len(sizes)] + sizes * self._itemsize
            wrong = np.flatnonzero(ends[: len(pointers) - 1] != pointers[1:])
            if len(wrong):
                raise DamagedFile(
                    f"{self.prefix}.idx is damaged: sequence {first + wrong[0]} has a wrong size"
                )
        if self.sidecar:
            check_stamp(beside(self.prefix, ".lines.npy"), self.sidecar.lines, every_byte=True)
            self.check_vocabulary(self.sidecar.tokenizer.vocab_size)

    def _check(self, *, every_byte: bool = False) -> None:
        if self.sidecar:
            check_stamp(beside(self.prefix, ".idx"), self.sidecar.idx, every_byte=every_byte)
            check_stamp(beside(self.prefix, ".bin"), self.sidecar.bin, every_byte=every_byte)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise DamagedFile if a token is not below `vocab_size`. Reads every token, at 2 GB per
        second.
        """
        for first in range(0, len(self.flat), _CHUNK_ENTRIES):
            # the index says which integers
            tokens: NDArray[np.integer[Any]] = self.flat[first : first + _CHUNK_ENTRIES]  # type: ignore[assignment]
            if int(tokens.max()) >= vocab_size or int(tokens.min()) < 0:
                place = first + int(np.flatnonzero((tokens >= vocab_size) | (tokens < 0))[0])
                sample = (
                    int(np.searchsorted(self.pointers, place * self._itemsize, side="right")) - 1
                )
                raise DamagedFile(
                    f"{self.prefix}.bin has token {self.flat[place]}, and the vocabulary has"
                    f" {vocab_size} ids",
                    cause=(
                        f"in sample {sample}; the data was made with another tokenizer, or is"
                        " damaged"
                    ),
                    hint="write it again with `sonde prepare`",
                )


def _map(path: Path) -> mmap.mmap | bytes:
    with open_regular(path, follow=True) as file:
        # An empty file cannot be mapped, but an empty corpus is still a corpus.
        if os.fstat(file.fileno()).st_size:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return b""
