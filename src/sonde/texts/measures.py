"""Numbers that tell what texts are like, for thousands of texts at once: the cheap screen that every sign begins with.

The texts are laid end to end as one array of characters, and each number is a handful of array operations over all of it, at tens of
megabytes a second. Shares of short texts are drawn towards what is usual by `settled`, since five words say little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.texts import letters

Floats = NDArray[np.float64]
_PAIR: Final = np.uint64(0x9E3779B97F4A7C15)
_BASE: Final = 0x5851F42D4C957F2D
_INVERSE: Final = pow(_BASE, -1, 1 << 64)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """The runs of letters of many texts, in small letters, as hashes."""

    hashes: NDArray[np.uint64]
    """One for each word."""
    text_of_word: NDArray[np.int64]
    """The text that each word stands in, ascending."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Characters:
    """Many texts as one array of characters; every text has a line end after it."""

    codes: NDArray[np.int32]
    text_of_code: NDArray[np.int64]
    classes: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    """Characters of each text, without the line end."""

    @property
    def num_texts(self) -> int:
        """How many texts there are."""
        return len(self.lengths)

    def count(self, mask: NDArray[np.bool_]) -> Floats:
        """How many characters of each text a mask holds for."""
        return np.bincount(self.text_of_code[mask], minlength=self.num_texts).astype(np.float64)


def lay_out(texts: Sequence[str]) -> Characters:
    """Texts as one array of characters."""
    codes = letters.codes_of("\n".join(texts) + "\n") if texts else np.zeros(0, np.int32)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return Characters(
        codes=codes,
        text_of_code=np.repeat(np.arange(len(texts)), lengths + 1),
        classes=letters.classes_of(codes),
        lengths=lengths,
    )


def words_in(laid: Characters, *, with_numbers: bool = False) -> Words:
    """The words of laid-out texts; `with_numbers` also runs of digits and of both."""
    is_letter = laid.classes <= (letters.DIGIT if with_numbers else letters.UPPER)
    edges = np.flatnonzero(
        np.diff(is_letter, prepend=False)
    )  # where words begin and end, in turn: a line end is always last
    starts = edges[::2]
    if not len(starts):
        return Words(hashes=np.zeros(0, np.uint64), text_of_word=np.zeros(0, np.int64))
    powers, inverses = _powers(len(is_letter))
    with np.errstate(over="ignore"):
        folded = letters.folded(laid.codes)
        terms = (np.where(laid.classes == letters.DIGIT, laid.codes, folded) if with_numbers else folded).astype(
            np.uint64
        )
        terms *= powers[: len(terms)]
        hashes = np.add.reduceat(terms, edges)[::2] * inverses[starts]
        hashes ^= hashes >> np.uint64(29)
    return Words(hashes=hashes, text_of_word=laid.text_of_code[starts])


def texts_of_words(words: Words) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Every different word, ascending, and how many texts hold it."""
    order = np.argsort(words.hashes, kind="stable")  # the texts of a word stay in their order
    hashes, texts = words.hashes[order], words.text_of_word[order]
    is_new = np.ones(len(hashes), bool)
    is_new[1:] = (hashes[1:] != hashes[:-1]) | (texts[1:] != texts[:-1])
    return np.unique(hashes[is_new], return_counts=True)


def _powers(size: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Powers of a number and of its inverse, at least `size` of them: a word has the same hash wherever it stands."""
    global _known_powers
    if len(_known_powers[0]) < size:
        made = []
        for base in (_BASE, _INVERSE):
            powers = np.full(max(size, 1 << 16), base, np.uint64)
            powers[0] = 1
            made.append(np.multiply.accumulate(powers))
        _known_powers = (made[0], made[1])
    return _known_powers


_known_powers: tuple[NDArray[np.uint64], NDArray[np.uint64]] = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def class_counts(laid: Characters) -> Floats:
    """How many characters of each class each text has, (texts, classes); the added line ends are not counted."""
    keys = laid.text_of_code * letters.NUM_CLASSES + laid.classes
    flat = np.bincount(keys, minlength=laid.num_texts * letters.NUM_CLASSES)
    counts = flat.reshape(-1, letters.NUM_CLASSES).astype(np.float64)
    counts[:, letters.SPACE] -= 1
    return counts


def distinct_pairs(words: Words, num_texts: int) -> Floats:
    """The part of the pairs of neighbouring words that are the first of their kind in their text; 1 for a text of less than two words."""
    same = words.text_of_word[1:] == words.text_of_word[:-1]
    texts = words.text_of_word[1:][same]
    with np.errstate(over="ignore"):
        hashes = words.hashes[:-1][same] * _PAIR + words.hashes[1:][same]
    # The text in the upper bits, the hash in the lower ones: sorting brings the same pair of the same text together.
    keys = np.sort((texts.astype(np.uint64) << np.uint64(40)) | (hashes >> np.uint64(24)))
    is_first = np.ones(len(keys), bool)
    is_first[1:] = keys[1:] != keys[:-1]
    distinct = np.bincount((keys[is_first] >> np.uint64(40)).astype(np.int64), minlength=num_texts)
    total = np.bincount(texts, minlength=num_texts)
    return np.where(total > 0, distinct / np.maximum(total, 1), 1.0)


def settled(sums: Floats, counts: Floats | NDArray[np.int64], usual: float, weight: float) -> Floats:
    """Means of each text, as if `weight` more of what is usual stood beside it."""
    return (sums + weight * usual) / (counts + weight)
