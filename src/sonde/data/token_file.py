"""The memory-mapped reader of one `.bin` and `.idx`: stateless random access, zero copies.

`tokens[i]` is a read-only numpy view into the page cache. Opening checks header, sizes and spots (mmididx.py, sidecar.py)
and maps; it reads no tokens and no index, so that a hundred million samples open in milliseconds and use no memory until
they are read. Pickles as its path: DataLoader workers map the same pages again.

Cost: 0.7 µs a read of a sequence, 1.5 million reads a CPU-second (benchmarks/data.py).
"""

import mmap
import os
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.data.mmididx import Index, read_index
from sonde.data.samples import Ragged, gather
from sonde.data.sidecar import Sidecar, check_once, check_stamp, find_line, lines_path, read_sidecar
from sonde.errors import DamagedFile, SettingError
from sonde.records.files import open_regular

_CHUNK_ENTRIES: Final = 1 << 20


def bin_path(prefix: Path) -> Path:
    """The tokens of `prefix`."""
    return prefix.with_name(prefix.name + ".bin")


def index_path(prefix: Path) -> Path:
    """The index of `prefix`."""
    return prefix.with_name(prefix.name + ".idx")


@final
class TokenFile:
    """All sequences of one language, by number."""

    def __init__(self, prefix: Path | str) -> None:
        self.prefix = Path(prefix)
        """Path without `.bin` and `.idx`."""
        self.sidecar: Sidecar | None = read_sidecar(self.prefix)
        """What sonde wrote beside it; None for a corpus of another system."""
        self.index: Index = read_index(index_path(self.prefix), bin_path(self.prefix))
        """Where everything lies."""
        if self.sidecar:
            check_once(index_path(self.prefix), self.sidecar.idx)
            check_once(bin_path(self.prefix), self.sidecar.bin)
        index = self.index
        entries = _map(index_path(self.prefix))
        self.sizes: NDArray[np.int32] = np.frombuffer(entries, "<i4", index.num_samples, index.sizes_at)
        """Tokens of each sequence."""
        self.pointers: NDArray[np.int64] = np.frombuffer(entries, "<i8", index.num_samples, index.pointers_at)
        """Byte where each sequence begins."""
        self.documents: NDArray[np.int64] = np.frombuffer(entries, "<i8", index.num_documents, index.documents_at)
        """Megatron's document index: the first sequence of each document, and the number of sequences; else empty."""
        self.flat: NDArray[np.generic] = np.frombuffer(_map(bin_path(self.prefix)), index.dtype)
        """All tokens, one sequence after the other."""
        # A memoryview gives Python integers and does not mind that the format leaves them unaligned: 4 times faster than
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
        """Tokens of all sequences together."""
        return len(self.flat)

    def starts(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each of `samples` begins in `flat`."""
        return self.pointers[samples] // self._itemsize

    def gather(self, samples: NDArray[np.int64]) -> Ragged:
        """The tokens of many samples."""
        return gather(self.flat, self.starts(samples), self.sizes[samples].astype(np.int64))

    def origin(self, sample: int) -> tuple[str, int]:
        """The text file and the line (from 1) that `sample` was made from."""
        if self.sidecar is None:
            raise SettingError(
                f"{self.prefix} does not know its text", hint="only corpora that `sonde prepare` wrote carry it"
            )
        if not 0 <= sample < len(self):
            raise SettingError(f"there is no sample {sample} in {self.prefix}", hint=f"it has {len(self)}")
        path = lines_path(self.prefix)
        check_once(path, self.sidecar.lines)
        starts = np.load(path, mmap_mode="r", allow_pickle=False)
        return self.sidecar.source, find_line(starts, sample)

    def verify(self) -> None:
        """Read every byte and compare with the sidecar's checksums, and every entry of the index with the next."""
        if self.sidecar:
            check_stamp(index_path(self.prefix), self.sidecar.idx, every_byte=True)
            check_stamp(bin_path(self.prefix), self.sidecar.bin, every_byte=True)
            check_stamp(lines_path(self.prefix), self.sidecar.lines, every_byte=True)
        for first in range(0, len(self), _CHUNK_ENTRIES):
            sizes = self.sizes[first : first + _CHUNK_ENTRIES].astype(np.int64)
            pointers = self.pointers[first : first + _CHUNK_ENTRIES + 1]
            ends = pointers[: len(sizes)] + sizes * self._itemsize
            wrong = np.flatnonzero(ends[: len(pointers) - 1] != pointers[1:])
            if len(wrong):
                raise DamagedFile(f"{index_path(self.prefix)} is damaged: sequence {first + wrong[0]} has a wrong size")
        if self.sidecar:
            self.check_vocabulary(self.sidecar.tokenizer.vocab_size)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise DamagedFile when a token is no id of a vocabulary of `vocab_size`. Reads every token, at 2 GB a second."""
        for first in range(0, len(self.flat), _CHUNK_ENTRIES):
            tokens: NDArray[np.integer[Any]] = self.flat[first : first + _CHUNK_ENTRIES]  # type: ignore[assignment]  # the index says which integers
            if int(tokens.max()) >= vocab_size or int(tokens.min()) < 0:
                place = first + int(np.flatnonzero((tokens >= vocab_size) | (tokens < 0))[0])
                sample = int(np.searchsorted(self.pointers, place * self._itemsize, side="right")) - 1
                raise DamagedFile(
                    f"{bin_path(self.prefix)} has token {self.flat[place]}, and the vocabulary has {vocab_size} ids",
                    cause=f"in sample {sample}; the data was made with another tokenizer, or is damaged",
                    hint="write it again with `sonde prepare`",
                )


def _map(path: Path) -> mmap.mmap | bytes:
    with open_regular(path, follow=True) as file:
        # An empty file cannot be mapped; a corpus of no tokens is still a corpus.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""
