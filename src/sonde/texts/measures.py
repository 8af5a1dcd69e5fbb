"""Cheap statistics of thousands of texts at once, used to screen texts before a closer look.

The texts are concatenated into one array of characters, and each statistic takes a few array
operations over all of it, at tens of megabytes per second. The class (letter, digit, symbol,
control, …), script and case-folded form of a character come from tables, which are filled when a
character first occurs. `settled` shrinks the shares of short texts towards the usual value, because
five words say little.
"""

import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

LOWER: Final = 0
"""A letter that is not uppercase, or a combining mark."""
UPPER: Final = 1
DIGIT: Final = 2
SPACE: Final = 3
PUNCTUATION: Final = 4
SYMBOL: Final = 5
"""Characters common in markup, code, tables and logs but rare in prose: < > { } [ ] = _ | and
similar.
"""
OTHER_SYMBOL: Final = 6
"""Emoji, arrows and currency symbols."""
CONTROL: Final = 7
BROKEN: Final = 8
"""Not a valid character: U+FFFD, surrogates, private-use and unassigned code points."""
NUM_CLASSES: Final = 9

SCRIPTS: Final = (
    *(
        "",
        "Other",
        "Latin",
        "Cyrillic",
        "Greek",
        "Hebrew",
        "Arabic",
        "Devanagari",
        "Thai",
        "Hangul",
        "Hiragana",
    ),
    *("Katakana", "CJK", "Armenian", "Georgian", "Bengali", "Tamil"),
)
"""The names of the scripts, by number. The first entry stands for everything that is not a
letter.
"""
_SCRIPT_OF_NAME: Final = {name.upper(): number for number, name in enumerate(SCRIPTS) if number > 1}
_CLASS_OF_CHARACTER: Final = {
    **dict.fromkeys("<>{}[]=_|\\/&#*^~$@%+`", SYMBOL),
    **dict.fromkeys("\t\n\r\v\f", SPACE),
    "\ufffd": BROKEN,
}
_CLASS_OF_CATEGORY: Final = {
    **dict.fromkeys(("Lu", "Lt"), UPPER),
    **dict.fromkeys("LM", LOWER),
    "N": DIGIT,
    "Z": SPACE,
    "P": PUNCTUATION,
    "Cc": CONTROL,
    **dict.fromkeys(("Cn", "Co", "Cs"), BROKEN),
}
"""By Unicode category, or by the first letter of one."""
_JOINERS: Final = "\u200c\u200d"
"""Persian, the languages of India and emoji are written with these."""
_UNKNOWN: Final = 255
_NUM_CODES: Final = 0x110000

_classes = np.full(_NUM_CODES, _UNKNOWN, np.uint8)
_scripts = np.zeros(_NUM_CODES, np.uint8)
_folded = np.zeros(_NUM_CODES, np.int32)

Floats = NDArray[np.float64]
_Whole = TypeVar("_Whole", np.int32, np.uint64)
_PAIR: Final = np.uint64(0x9E3779B97F4A7C15)
_BASE: Final = np.uint64(0x5851F42D4C957F2D)


def visible(text: str) -> str:
    """Return a text without format characters: zero-width spaces, soft hyphens, direction marks.

    What is left reads as the text does on a screen.
    """
    return text if text.isascii() else _format_characters().sub("", text)


def invisible(text: str) -> str:
    """Return the format characters of a text that no spelling asks for. Joiners count only between
    Latin letters.
    """
    if text.isascii():
        return ""
    return "".join(_needless_characters().findall(text))


@lru_cache(maxsize=1)
def _format_characters() -> re.Pattern[str]:
    return re.compile(f"[{_of_format()}]+")


@lru_cache(maxsize=1)
def _needless_characters() -> re.Pattern[str]:
    others = "".join(code for code in _of_format() if code not in _JOINERS)
    return re.compile(f"[{others}]|(?<=[A-Za-z])[{_JOINERS}](?=[A-Za-z])")


@lru_cache(maxsize=1)
def _of_format() -> str:
    every = map(chr, range(sys.maxunicode + 1))
    return "".join(code for code in every if unicodedata.category(code) == "Cf")


def codes_of(text: str) -> NDArray[np.int32]:
    """Return the code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)


def classes_of(codes: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Return the class of each character."""
    found = _classes[codes]
    missing = codes[found == _UNKNOWN]
    if len(missing):
        for code in np.unique(missing).tolist():
            _fill(code)
        found = _classes[codes]
    return found


def scripts_of(codes: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Return the script of each character as an index into SCRIPTS. Call `classes_of` on the
    characters first.
    """
    return _scripts[codes]


def folded(codes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return lowercase letters, with every digit as 0 and all whitespace as a blank. Call
    `classes_of` on the characters first.
    """
    return _folded[codes]


def _fill(code: int) -> None:
    character = chr(code)
    category = unicodedata.category(character)
    _classes[code] = _class_of(character, category)
    _folded[code] = code
    if category[0] == "L":
        name = unicodedata.name(character, "").split(" ", 1)[0].split("-", 1)[0]
        _scripts[code] = _SCRIPT_OF_NAME.get(name, 1)
        lower = character.lower()
        _folded[code] = ord(lower) if len(lower) == 1 else code
    elif category == "Nd":
        _folded[code] = ord("0")
    elif character.isspace():
        _folded[code] = ord(" ")


def _class_of(character: str, category: str) -> int:
    if character in _CLASS_OF_CHARACTER:
        return _CLASS_OF_CHARACTER[character]
    return _CLASS_OF_CATEGORY.get(category, _CLASS_OF_CATEGORY.get(category[0], OTHER_SYMBOL))


class Words(NamedTuple):
    """The words (runs of letters) of many texts, lowercased and hashed."""

    hashes: NDArray[np.uint64]
    """The hash of each word."""
    text_of_word: NDArray[np.int64]
    """The index of the text that each word belongs to, ascending."""
    num_texts: int
    """The number of texts."""

    def per_text(self, mask: NDArray[np.bool_] | slice = slice(None)) -> Floats:
        """Count the words of each text, or those that `mask` selects."""
        return np.bincount(self.text_of_word[mask], minlength=self.num_texts).astype(np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Characters:
    """Many texts as one array of characters, with a newline after each text."""

    codes: NDArray[np.int32]
    text_of_code: NDArray[np.int64]
    classes: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    """The length of each text in characters, without the newline."""

    @property
    def num_texts(self) -> int:
        """The number of texts."""
        return len(self.lengths)


def lay_out(texts: Sequence[str]) -> Characters:
    """Concatenate texts into one array of characters."""
    codes = codes_of("\n".join(texts) + "\n") if texts else np.zeros(0, np.int32)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return Characters(
        codes=codes,
        text_of_code=np.repeat(np.arange(len(texts)), lengths + 1),
        classes=classes_of(codes),
        lengths=lengths,
    )


def words_in(laid: Characters, *, with_numbers: bool = False) -> Words:
    """Return the words of the texts. `with_numbers` includes digits in words."""
    in_word = laid.classes <= (DIGIT if with_numbers else UPPER)
    # Where words begin and end, alternating: the last character is always a newline.
    edges = np.flatnonzero(np.diff(in_word, prepend=False))
    starts = edges[::2]
    lengths = np.diff(edges)[::2]
    codes = laid.codes[in_word]
    if not len(starts):
        return Words(np.zeros(0, np.uint64), np.zeros(0, np.int64), laid.num_texts)
    terms = folded(codes).astype(np.uint64)
    if with_numbers:
        terms = np.where(laid.classes[in_word] == DIGIT, codes, terms).astype(np.uint64)
    firsts = np.cumsum(lengths) - lengths
    places = np.arange(len(codes)) - np.repeat(firsts, lengths)
    # A polynomial in the letters of a word, modulo 2^64.
    powers = np.multiply.accumulate(np.r_[np.uint64(1), np.full(int(lengths.max()), _BASE)])
    hashes = np.add.reduceat(terms * powers[places], firsts)
    return Words(hashes ^ (hashes >> np.uint64(29)), laid.text_of_code[starts], laid.num_texts)


def texts_of_words(words: Words) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the distinct words, ascending by hash, and the number of texts that contain each."""
    order = np.argsort(words.hashes, kind="stable")  # stable, so the texts of a word stay in order
    hashes = words.hashes[order]
    texts = words.text_of_word[order]
    is_new = np.ones(len(hashes), bool)
    is_new[1:] = (hashes[1:] != hashes[:-1]) | (texts[1:] != texts[:-1])
    return np.unique(hashes[is_new], return_counts=True)


def places_of(values: NDArray[_Whole], known: NDArray[_Whole]) -> NDArray[np.intp]:
    """Return the place of each value among the `known` ones, which are ascending; -1 for any other
    value.
    """
    if not len(known):
        return np.full(len(values), -1)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[places] == values, places, -1)


def class_counts(laid: Characters) -> Floats:
    """Count the characters of each class in each text, (texts, classes), without the added
    newlines.
    """
    keys = laid.text_of_code * NUM_CLASSES + laid.classes
    flat = np.bincount(keys, minlength=laid.num_texts * NUM_CLASSES)
    counts = flat.reshape(-1, NUM_CLASSES).astype(np.float64)
    counts[:, SPACE] -= 1
    return counts


def distinct_pairs(words: Words) -> Floats:
    """Return the fraction of word bigrams that are distinct within their text; 1 for texts with
    fewer than two words.
    """
    same = words.text_of_word[1:] == words.text_of_word[:-1]
    texts = words.text_of_word[1:][same]
    with np.errstate(over="ignore"):
        hashes = words.hashes[:-1][same] * _PAIR + words.hashes[1:][same]
    # The text in the upper bits and the hash in the lower ones: sorting groups equal bigrams of the
    # same text.
    keys = np.sort((texts.astype(np.uint64) << np.uint64(40)) | (hashes >> np.uint64(24)))
    is_first = np.ones(len(keys), bool)
    is_first[1:] = keys[1:] != keys[:-1]
    distinct = np.bincount(
        (keys[is_first] >> np.uint64(40)).astype(np.int64), minlength=words.num_texts
    )
    total = np.bincount(texts, minlength=words.num_texts)
    return np.where(total > 0, distinct / np.maximum(total, 1), 1.0)


def settled(
    sums: Floats, counts: Floats | NDArray[np.int64], usual: float, weight: float
) -> Floats:
    """Return the mean of each text, shrunk towards `usual` as if `weight` more items of that value
    were added.
    """
    return (sums + weight * usual) / (counts + weight)
