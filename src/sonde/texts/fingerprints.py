"""The same text again, anywhere in a corpus: exactly, or nearly (MinHash over runs of three words, locality-sensitive hashing).

`fingerprints_of` makes the marks of many texts at once, with array operations over all of them: 64 minima a text. `DuplicateFinder` puts them on
the disk, parted by hash, and compares one part after the other, so memory does not grow with the corpus: 544 bytes of disk a text.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, final

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
"""Shorter texts are alike by accident; they are only compared as a whole."""
_NUM_PARTS: Final = 32
_random: Final = np.random.default_rng(20)
_FACTORS: Final = _random.integers(1, 1 << 63, _NUM_MINIMA, dtype=np.uint64) | np.uint64(1)
_OFFSETS: Final = _random.integers(0, 1 << 63, _NUM_MINIMA, dtype=np.uint64)
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_ENTRY: Final = np.dtype([("key", "<u8"), ("text", "<i8")])


class Fingerprints(NamedTuple):
    """The marks of many texts."""

    exact: NDArray[np.uint64]
    """A hash of each whole text; 0 for texts without a letter."""
    minima: NDArray[np.uint32]
    """(texts, 64); all zero for texts that are too short to be compared. None at all when near ones are not looked for."""


class Match(NamedTuple):
    """A text that stands earlier in the corpus already."""

    text: int
    """Its number."""
    earlier: int
    """The number of the earlier one."""
    similarity: float
    """1 for the same text; else the estimated part of the runs of words that the two share, at most 0.99."""


def fingerprints_of(texts: Sequence[str], *, near: bool = True) -> Fingerprints:
    """The marks of texts."""
    exact = np.frombuffer(b"".join(map(_digest, texts)), "<u8")
    if not near:
        return Fingerprints(exact, np.zeros((0, _NUM_MINIMA), np.uint32))
    minima = np.zeros((len(texts), _NUM_MINIMA), np.uint32)
    words = words_in(lay_out(texts), with_numbers=True)
    if len(words.hashes) < _RUN:
        return Fingerprints(exact, minima)
    inside = words.text_of_word[_RUN - 1 :] == words.text_of_word[: -_RUN + 1]
    with np.errstate(over="ignore"):
        runs = words.hashes[: -_RUN + 1].copy()
        for offset in range(1, _RUN):
            runs = (runs * _MIX) ^ words.hashes[offset : len(words.hashes) - _RUN + 1 + offset]
        runs, of_run = runs[inside] * _MIX, words.text_of_word[: -_RUN + 1][inside]
        if not len(runs):
            return Fingerprints(exact, minima)
        starts = np.flatnonzero(np.diff(of_run, prepend=-1))
        for place in range(_NUM_MINIMA):
            hashed = ((runs * _FACTORS[place] + _OFFSETS[place]) >> np.uint64(32)).astype(np.uint32)
            minima[of_run[starts], place] = np.minimum.reduceat(hashed, starts)
    num_words = np.bincount(words.text_of_word, minlength=len(texts))
    minima[num_words < _LEAST_WORDS] = 0
    return Fingerprints(exact, minima)


def _digest(text: str) -> bytes:
    text = text.strip()
    if not text[:1].isalnum() and _ALPHANUMERIC.search(text, 0, 200) is None:
        return bytes(8)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


@final
class DuplicateFinder:
    """Collects the marks of a corpus, text after text, and says which texts stand in it more than once."""

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
        """The marks of the next texts."""
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
        """Every text that stands earlier already, once, in no order."""
        done = np.zeros(self._num_texts, bool)
        for part in range(_NUM_PARTS):
            for first, other in _pairs(self._file(f"exact-{part}")):
                fresh = ~done[other]
                done[other] = True
                yield from map(Match, other[fresh].tolist(), first[fresh].tolist(), [1.0] * int(fresh.sum()))
        if "minima" not in self._files:
            return
        self._file("minima").flush()
        minima = np.memmap(self._file("minima"), np.uint32, "r").reshape(-1, _NUM_MINIMA)
        for part in range(_NUM_PARTS):
            for first, other in _pairs(self._file(f"bands-{part}")):
                fresh = ~done[other]
                first, other = first[fresh], other[fresh]
                similarity = np.mean(minima[first] == minima[other], axis=1)
                similar = np.flatnonzero(similarity >= self._least)
                for place in similar.tolist():
                    if not done[other[place]]:
                        done[other[place]] = True
                        yield Match(int(other[place]), int(first[place]), min(float(similarity[place]), 0.99))

    def _file(self, name: str) -> BinaryIO:
        if name not in self._files:
            self._files[name] = (Path(self._folder.name) / name).open("w+b")
        return self._files[name]

    def _put(self, kind: str, keys: NDArray[np.uint64], texts: NDArray[np.int64]) -> None:
        wanted = keys != 0
        entries = np.empty(int(wanted.sum()), _ENTRY)
        entries["key"], entries["text"] = keys[wanted], texts[wanted]
        parts = (entries["key"] >> np.uint64(59)).astype(np.int64)
        order = np.argsort(parts, kind="stable")
        bounds = np.searchsorted(parts[order], np.arange(_NUM_PARTS + 1))
        for part in np.unique(parts).tolist():
            self._file(f"{kind}-{part}").write(entries[order[bounds[part] : bounds[part + 1]]].tobytes())


def _pairs(file: BinaryIO) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Texts with the same key, each with the first and with the one before, a million at a time."""
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
