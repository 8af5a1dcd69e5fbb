"""Find exact and near duplicates anywhere in a corpus (MinHash over three-word shingles with
locality-sensitive hashing).

`fingerprints_of` computes 64 MinHash values per text, vectorized over many texts. `DuplicateFinder`
writes them to disk, partitioned by hash, and compares one partition at a time, so memory does not
grow with the corpus. It needs 544 bytes of disk per text.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sonde.texts.measures import lay_out, words_in

DUPLICATE: Final = "duplicate"
NEAR_DUPLICATE: Final = "near_duplicate"

_NUM_MINIMA: Final = 64
_BANDS: Final = 16
_RUN: Final = 3
_ALPHANUMERIC: Final = re.compile(r"[^\W_]")
_LEAST_WORDS: Final = 6
"""Shorter texts resemble each other by accident, so only exact duplicates of them are found."""
_NUM_PARTS: Final = 32
_random: Final = np.random.default_rng(20)
_FACTORS: Final = _random.integers(1, 1 << 63, _NUM_MINIMA, dtype=np.uint64) | np.uint64(1)
_OFFSETS: Final = _random.integers(0, 1 << 63, _NUM_MINIMA, dtype=np.uint64)
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_ENTRY: Final = np.dtype([("key", "<u8"), ("text", "<i8")])


class Fingerprints(NamedTuple):
    """The fingerprints of many texts."""

    exact: NDArray[np.uint64]
    """A hash of each whole text; 0 for texts without letters or digits."""
    minima: NDArray[np.uint32]
    """The MinHash values, (texts, 64). All zero for texts too short to compare; no rows if
    near-duplicates are not wanted.
    """


class Match(NamedTuple):
    """A text that already occurs earlier in the corpus."""

    text: int
    """The index of the text."""
    earlier: int
    """The index of the earlier text."""
    similarity: float
    """1 for an exact duplicate, otherwise the estimated Jaccard similarity of the shingles, at most
    0.99.
    """


def fingerprints_of(texts: Sequence[str], *, near: bool = True) -> Fingerprints:
    """Compute the fingerprints of `texts`; with `near=False` only the exact ones."""
    exact = np.frombuffer(b"".join(map(_digest, texts)), "<u8")
    if not near:
        return Fingerprints(exact, np.zeros((0, _NUM_MINIMA), np.uint32))
    minima = np.zeros((len(texts), _NUM_MINIMA), np.uint32)
    words = words_in(lay_out(texts), with_numbers=True)
    inside = words.text_of_word[_RUN - 1 :] == words.text_of_word[: -_RUN + 1]
    with np.errstate(over="ignore"):
        runs = words.hashes[: -_RUN + 1].copy()
        for offset in range(1, _RUN):
            runs = (runs * _MIX) ^ words.hashes[offset : len(words.hashes) - _RUN + 1 + offset]
        runs = runs[inside] * _MIX
        of_run = words.text_of_word[: -_RUN + 1][inside]
        starts = np.flatnonzero(np.diff(of_run, prepend=-1))
        for place in range(_NUM_MINIMA):
            hashed = ((runs * _FACTORS[place] + _OFFSETS[place]) >> np.uint64(32)).astype(np.uint32)
            minima[of_run[starts], place] = np.minimum.reduceat(hashed, starts)
    minima[words.per_text() < _LEAST_WORDS] = 0
    return Fingerprints(exact, minima)


def _digest(text: str) -> bytes:
    text = text.strip()
    if not text[:1].isalnum() and _ALPHANUMERIC.search(text, 0, 200) is None:
        return bytes(8)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


class DuplicateFinder:
    """Collects the fingerprints of a corpus and finds the texts that occur in it more than once."""

    def __init__(self, *, least: float = 0.8) -> None:
        self._least = least
        self._num_texts = 0
        self._folder = tempfile.TemporaryDirectory(prefix="sonde-audit-")
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> "DuplicateFinder":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        self._folder.cleanup()

    def add(self, marks: Fingerprints) -> None:
        """Add the fingerprints of the next texts."""
        numbers = np.arange(self._num_texts, self._num_texts + len(marks.exact))
        self._num_texts += len(marks.exact)
        self._put("exact", marks.exact, numbers)
        if not len(marks.minima):
            return
        self._file("minima").write(marks.minima.tobytes())
        comparable = marks.minima.any(1)
        rows = marks.minima[comparable].reshape(-1, _BANDS, _NUM_MINIMA // _BANDS).astype(np.uint64)
        with np.errstate(over="ignore"):
            keys = np.broadcast_to(np.arange(1, _BANDS + 1, dtype=np.uint64), rows.shape[:2]) * _MIX
            for place in range(rows.shape[2]):
                keys = (keys ^ rows[:, :, place]) * _MIX
                keys ^= keys >> np.uint64(31)
        self._put("bands", keys.ravel(), np.repeat(numbers[comparable], _BANDS))

    def matches(self) -> Iterator[Match]:
        """Yield each text that already occurs earlier in the corpus once, in no particular
        order.
        """
        done = np.zeros(self._num_texts, bool)
        for part in range(_NUM_PARTS):
            for first, other in _pairs(self._file(f"exact-{part}")):
                fresh = ~done[other]
                done[other] = True
                yield from map(
                    Match, other[fresh].tolist(), first[fresh].tolist(), [1.0] * int(fresh.sum())
                )
        if "minima" not in self._files:
            return
        self._file("minima").flush()
        minima = np.memmap(self._file("minima"), np.uint32, "r").reshape(-1, _NUM_MINIMA)
        for part in range(_NUM_PARTS):
            for first, other in _pairs(self._file(f"bands-{part}")):
                fresh = ~done[other]
                first = first[fresh]
                other = other[fresh]
                similarity = np.mean(minima[first] == minima[other], axis=1)
                similar = np.flatnonzero(similarity >= self._least)
                for place in similar.tolist():
                    if not done[other[place]]:
                        done[other[place]] = True
                        yield Match(
                            int(other[place]),
                            int(first[place]),
                            min(float(similarity[place]), 0.99),
                        )

    def _file(self, name: str) -> BinaryIO:
        if name not in self._files:
            self._files[name] = (Path(self._folder.name) / name).open("w+b")
        return self._files[name]

    def _put(self, kind: str, keys: NDArray[np.uint64], texts: NDArray[np.int64]) -> None:
        wanted = keys != 0
        entries = np.empty(int(wanted.sum()), _ENTRY)
        entries["key"] = keys[wanted]
        entries["text"] = texts[wanted]
        parts = (entries["key"] >> np.uint64(59)).astype(np.int64)
        order = np.argsort(parts, kind="stable")
        bounds = np.searchsorted(parts[order], np.arange(_NUM_PARTS + 1))
        for part in np.unique(parts).tolist():
            self._file(f"{kind}-{part}").write(
                entries[order[bounds[part] : bounds[part + 1]]].tobytes()
            )


def _pairs(file: BinaryIO) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs of texts with the same key, each text with the first and with the previous one, a
    million at a time.
    """
    file.seek(0)
    entries = np.frombuffer(file.read(), _ENTRY)
    entries = entries[np.lexsort((entries["text"], entries["key"]))]
    if not len(entries):
        return
    starts = np.flatnonzero(np.r_[True, entries["key"][1:] != entries["key"][:-1]])
    first = np.repeat(entries["text"][starts], np.diff(starts, append=len(entries)))
    is_first = np.zeros(len(entries), bool)
    is_first[starts] = True
    others = np.flatnonzero(~is_first)
    for at in range(0, len(others), 1 << 20):
        chosen = others[at : at + (1 << 20)]
        yield first[chosen], entries["text"][chosen]
        yield entries["text"][chosen - 1], entries["text"][chosen]
