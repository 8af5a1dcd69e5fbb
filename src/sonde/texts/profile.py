"""What the texts of a corpus are usually like, from a few hundred or thousand of them: the measure that one text is held against.

Every sign of a text begins with a plain number. A profile knows the same number for many other texts of the same corpus, so that "unusual"
means unusual here: code, tables and Chinese are normal where they are normal. Up to about 5 % of bad texts among them change nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from sonde.texts import letters
from sonde.texts.densities import Density, misdecoded_share
from sonde.texts.languages import identify
from sonde.texts.measures import (
    Characters,
    Floats,
    Words,
    class_counts,
    distinct_pairs,
    lay_out,
    settled,
    texts_of_words,
    words_in,
)
from sonde.texts.repetition import repeated_share

_NUM_CHARACTERS: Final = 255
"""Characters that count one by one; rarer ones are alike."""
_SMOOTHING: Final = 0.1
_TAIL: Final = 0.05
"""The part of the texts that lie in one tail of a measure."""
_FEW_WORDS: Final = 4.0
_FEW_LETTERS: Final = 12.0
"""A text counts as if this many usual words or characters stood beside its own."""
_LATIN: Final = letters.SCRIPTS.index("Latin")
_JAPANESE: Final = frozenset(letters.SCRIPTS.index(name) for name in ("Hiragana", "Katakana", "CJK"))
_LAST_LATIN: Final = 0x24F
_OWN_SCRIPT: Final = 0.01
_OWN_LANGUAGE: Final = 0.05
"""A script or language with a smaller share of the corpus is foreign to it."""
_SHORT_TAILS: Final = (0.05, 0.2)
"""The tails of known words and of surprise are taken for at least as long as this."""
_COMMON: Final = 0.03
"""The part of the texts that hold a common word."""
_NUM_IDENTIFIED: Final = 120
_MAX_IDENTIFIED: Final = 400
"""Texts, and characters of them, that say which languages are the corpus's own."""
_NUM_CHOSEN: Final = 400
"""Texts that are looked at closely."""


Number = TypeVar("Number", float, Floats)


@final
@dataclass(frozen=True, slots=True)
class Usual:
    """Where a number usually lies: its median and the ends of its tails."""

    median: float
    low: float
    high: float

    def above(self, value: Number, least: float) -> Number:
        """How far beyond the upper tail a value lies, in lengths of that tail; `least` is the shortest that a tail is taken for."""
        return (value - self.high) / max(self.high - self.median, least)

    def below(self, value: Number, least: float) -> Number:
        """The same for the lower tail."""
        return (self.low - value) / max(self.median - self.low, least)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The cheap numbers of many texts, an array each."""

    num_characters: Floats
    num_words: Floats
    counts: Floats
    """Characters by class, (texts, classes)."""
    columns: Mapping[str, Floats]
    """The numbers that a profile knows the usual values of, by name; `odd` is how unusual words and letters are together, 0 to 6."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusProfile:
    """What is usual in a corpus. Made by `profile_of`."""

    characters: NDArray[np.int32] = field(repr=False)
    """Characters that count one by one, ascending."""
    bits: NDArray[np.float32] = field(repr=False)
    """Bits of a character after the one before it, for all pairs of those characters and of "any other", which is number 0."""
    vocabulary: NDArray[np.uint64] = field(repr=False)
    """Hashes of the words of the corpus, ascending,"""
    num_texts_of_word: NDArray[np.int32] = field(repr=False)
    """and how many of the texts hold each."""
    least_common: int
    """A word that this many texts hold is common."""
    scripts: frozenset[int]
    """Scripts that belong to the corpus, as places in `letters.SCRIPTS`,"""
    main_script: frozenset[int]
    """and the one that most letters belong to; those of Japanese count as one."""
    languages: tuple[str, ...]
    """Languages that belong to the corpus (ISO 639 codes), commonest first; empty when no language stands out."""
    usual: Mapping[str, Usual]
    """The usual values of every number."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """The part of its own texts that each sign is read in, however weakly."""

    def measure(self, texts: Sequence[str], *, are_own: bool = False) -> Measured:
        """The cheap numbers of texts; `are_own` when the profile was made of them."""
        laid = lay_out(texts)
        words = words_in(laid)
        num_words = np.bincount(words.text_of_word, minlength=laid.num_texts).astype(np.float64)
        num_holding = self._num_texts_of(words.hashes)
        known = num_holding >= (2 if are_own else 1)
        num_common = np.bincount(words.text_of_word[num_holding >= self.least_common], minlength=laid.num_texts)
        num_known = np.bincount(words.text_of_word[known], minlength=laid.num_texts).astype(np.float64)
        counts = class_counts(laid)
        length = laid.lengths.astype(np.float64)
        filled = np.maximum(length - counts[:, letters.SPACE], 0)
        num_letters = counts[:, letters.LOWER] + counts[:, letters.UPPER]
        columns = {
            "length": np.log1p(length),
            "known_words": self._settled("known_words", num_known, num_words, _FEW_WORDS),
            "common_words": self._settled("common_words", num_common.astype(np.float64), num_words, _FEW_WORDS),
            "surprise": self._settled("surprise", self._sum_of_bits(laid), np.maximum(length, 0), _FEW_LETTERS),
            "distinct": distinct_pairs(words, laid.num_texts),
            "capitals": self._settled("capitals", counts[:, letters.UPPER], num_letters, _FEW_LETTERS),
            "letters": self._settled("letters", num_letters, filled, _FEW_LETTERS),
            "digits": self._settled("digits", counts[:, letters.DIGIT], filled, _FEW_LETTERS),
            "signs": self._settled("signs", counts[:, letters.SIGN], filled, _FEW_LETTERS),
            "foreign_letters": self._letters_outside(self.scripts, laid, num_letters),
            "minor_letters": self._letters_outside(self.main_script, laid, num_letters),
            "mis_decoded": _misdecoded(texts, laid),
        }
        if self.usual:
            unknown = self.usual["known_words"].below(columns["known_words"], _SHORT_TAILS[0])
            surprise = self.usual["surprise"].above(columns["surprise"], _SHORT_TAILS[1])
            columns["odd"] = np.clip(unknown, 0, 3) + np.clip(surprise, 0, 3)
        return Measured(num_characters=length, num_words=num_words, counts=counts, columns=columns)

    def familiarity(self, words: Words, num_texts: int) -> Floats:
        """How many texts of the corpus hold the words of each text: the mean logarithm (to ten) over its words; 0 without words."""
        num_words = np.bincount(words.text_of_word, minlength=num_texts)
        logarithms = np.log10(self._num_texts_of(words.hashes) + 0.5)
        return np.bincount(words.text_of_word, logarithms, num_texts) / np.maximum(num_words, 1)

    def _num_texts_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """How many texts of the profile hold each word."""
        if not len(self.vocabulary):
            return np.zeros(len(hashes), np.int32)
        places = np.minimum(np.searchsorted(self.vocabulary, hashes), len(self.vocabulary) - 1)
        return np.where(self.vocabulary[places] == hashes, self.num_texts_of_word[places], 0)

    def _settled(self, name: str, sums: Floats, counts: Floats, weight: float) -> Floats:
        usual = self.usual.get(name)
        return settled(sums, counts, 0.0 if usual is None else usual.median, 1e-9 if usual is None else weight)

    def _sum_of_bits(self, laid: Characters) -> Floats:
        if not len(laid.codes):
            return np.zeros(0)
        folded = letters.folded(np.arange(int(laid.codes.max()) + 1, dtype=np.int32))
        places = np.minimum(np.searchsorted(self.characters, folded), max(len(self.characters) - 1, 0))
        known = self.characters[places] == folded if len(self.characters) else np.zeros(len(folded), bool)
        numbers = np.where(known, places + 1, 0).astype(np.int32)[laid.codes]
        bits = self.bits.ravel().take(numbers[:-1] * np.int32(len(self.bits)) + numbers[1:])
        ends = np.cumsum(laid.lengths + 1)
        bits[ends[:-1] - 1] = 0  # from the end of one text to the beginning of the next
        if not len(bits):
            return np.zeros(laid.num_texts)
        return np.add.reduceat(np.append(bits, np.float32(0)), ends - laid.lengths - 1, dtype=np.float64)

    def _letters_outside(self, scripts: frozenset[int], laid: Characters, num_letters: Floats) -> Floats:
        """The part of each text's letters that belong to other scripts than these."""
        places = np.flatnonzero(laid.codes > _LAST_LATIN) if _LATIN in scripts else np.arange(len(laid.codes))
        is_outside = np.array([number > 0 and number not in scripts for number in range(len(letters.SCRIPTS))])
        found = places[is_outside[letters.scripts_of(laid.codes[places])]]
        return np.bincount(laid.text_of_code[found], minlength=laid.num_texts) / np.maximum(num_letters, 1)


def draft_profile(texts: Sequence[str], densities: Sequence[Density]) -> CorpusProfile:
    """The profile of texts that are taken to be normal on the whole, without the usual share of each sign: see `signs.profile_of`."""
    laid = lay_out(texts)
    words = words_in(laid)
    vocabulary, num_texts_of_word = texts_of_words(words)
    characters, bits = _bits_of_pairs(laid)
    draft = CorpusProfile(
        characters=characters,
        bits=bits,
        vocabulary=vocabulary,
        num_texts_of_word=num_texts_of_word.astype(np.int32),
        least_common=max(int(_COMMON * len(texts)), 2),
        scripts=_own_scripts(laid),
        main_script=_main_script(laid),
        languages=_own_languages(texts),
        usual={},
    )
    # Twice: shares of short texts are drawn towards what the first pass found usual.
    for _ in range(2):
        measured = draft.measure(texts, are_own=True)
        usual = {name: usual_of(column) for name, column in measured.columns.items()}
        draft = replace(draft, usual=usual)
    chosen = texts[:: max(len(texts) // _NUM_CHOSEN, 1)]
    close = {one.kind: usual_of(np.array([one.find(text).share for text in chosen])) for one in densities}
    close["repeated"] = usual_of(np.array([repeated_share(text.split()).share for text in chosen]))
    return replace(draft, usual={**draft.usual, **close})


def _misdecoded(texts: Sequence[str], laid: Characters) -> Floats:
    """The share of each text that a wrong decoder made; only texts with two such characters side by side are looked at."""
    beyond = laid.codes >= 0xA0
    suspicious = np.unique(laid.text_of_code[:-1][beyond[:-1] & (laid.codes[1:] >= 0x80)])
    shares = np.zeros(len(texts))
    for number in suspicious.tolist():
        shares[number] = misdecoded_share(texts[number])[1]
    return shares


def usual_of(values: Floats) -> Usual:
    """Where values usually lie."""
    if not len(values):
        return Usual(0.0, 0.0, 0.0)
    low, median, high = np.quantile(values, [_TAIL, 0.5, 1 - _TAIL])
    return Usual(float(median), float(low), float(high))


def _bits_of_pairs(laid: Characters) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    small = letters.folded(laid.codes)
    seen, counts = np.unique(small, return_counts=True)
    common = np.sort(seen[np.argsort(-counts, kind="stable")[:_NUM_CHARACTERS]])
    places = np.minimum(np.searchsorted(common, small), max(len(common) - 1, 0))
    numbers = np.where(common[places] == small, places + 1, 0) if len(common) else np.zeros(0, np.intp)
    size = len(common) + 1
    table = np.bincount(numbers[:-1] * size + numbers[1:], minlength=size * size).reshape(size, size)
    smooth = table + _SMOOTHING
    return common.astype(np.int32), -np.log2(smooth / smooth.sum(1, keepdims=True)).astype(np.float32)


def _own_scripts(laid: Characters) -> frozenset[int]:
    found = np.bincount(letters.scripts_of(laid.codes), minlength=len(letters.SCRIPTS))[1:]
    return frozenset((np.flatnonzero(found >= _OWN_SCRIPT * max(found.sum(), 1)) + 1).tolist())


def _main_script(laid: Characters) -> frozenset[int]:
    main = int(np.bincount(letters.scripts_of(laid.codes), minlength=len(letters.SCRIPTS))[1:].argmax()) + 1
    return _JAPANESE if main in _JAPANESE else frozenset({main})


def _own_languages(texts: Sequence[str]) -> tuple[str, ...]:
    chosen = texts[:: max(len(texts) // _NUM_IDENTIFIED, 1)]
    votes: Counter[str] = Counter()
    for text in chosen:
        found = identify(text[:_MAX_IDENTIFIED])
        if found:
            votes[found[0].language] += 1
    least = max(_OWN_LANGUAGE * sum(votes.values()), 2)
    return tuple(language for language, num in votes.most_common() if num >= least)
