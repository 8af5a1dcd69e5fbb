"""What the texts of a corpus are usually like, learned from a few hundred or thousand of them.

Every sign starts from a plain statistic of a text. A profile has the distribution of that statistic
in the corpus, so "unusual" means unusual for this corpus: code, tables and Chinese are normal where
they are common. Up to about 5 % of bad texts in the sample make no difference.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sonde.texts import measures
from sonde.texts.densities import DENSITIES, misdecoded_share, quoted_share, repeated_share
from sonde.texts.languages import identify
from sonde.texts.measures import Characters, Floats, Words, lay_out, settled, words_in

_NUM_CHARACTERS: Final = 255
"""The number of characters modeled individually; rarer ones share one entry."""
_SMOOTHING: Final = 0.1
_TAIL: Final = 0.05
"""The fraction of the texts in each tail of a statistic."""
_FEW_WORDS: Final = 4.0
_FEW_LETTERS: Final = 12.0
"""Prior weights: the shares of a text are shrunk as if this many usual words or characters were
added.
"""
_LATIN: Final = measures.SCRIPTS.index("Latin")
_JAPANESE: Final = frozenset(
    measures.SCRIPTS.index(name) for name in ("Hiragana", "Katakana", "CJK")
)
_LAST_LATIN: Final = 0x24F
_OWN_SCRIPT: Final = 0.01
_OWN_LANGUAGE: Final = 0.05
"""A script or language with a smaller share of the corpus is foreign to it."""
_SHORT_TAILS: Final = (0.05, 0.2)
"""Minimum tail lengths for known words and for surprise."""
_COMMON: Final = 0.03
"""A word is common when at least this fraction of the texts contains it."""
_NUM_IDENTIFIED: Final = 120
_MAX_IDENTIFIED: Final = 400
"""The number of texts, and of characters in each, that are used to identify the corpus's
languages.
"""
_NUM_CHOSEN: Final = 400
"""The number of texts used for the expensive statistics."""


Number = TypeVar("Number", float, Floats)


class Usual(NamedTuple):
    """The usual range of a statistic: its median and where its tails begin."""

    median: float
    low: float
    high: float

    def above(self, value: Number, least: float) -> Number:
        """Return how far `value` lies beyond the upper tail, in tail lengths. `least` is the
        minimum tail length.
        """
        return (value - self.high) / max(self.high - self.median, least)

    def below(self, value: Number, least: float) -> Number:
        """Return how far `value` lies below the lower tail, in tail lengths. `least` is the minimum
        tail length.
        """
        return (self.low - value) / max(self.median - self.low, least)


class Measured(NamedTuple):
    """The cheap statistics of many texts, one array each."""

    num_characters: Floats
    num_words: Floats
    counts: Floats
    """The number of characters of each class, (texts, classes)."""
    columns: Mapping[str, Floats]
    """The statistics that a profile has usual values for, by name. `odd` is how unusual words and
    letters are together, 0 to 6.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusProfile:
    """What is usual in a corpus. Made by `profile_of`."""

    characters: NDArray[np.int32] = field(repr=False)
    """The characters modeled individually, ascending."""
    bits: NDArray[np.float32] = field(repr=False)
    """Bits of each character given the previous one, for all pairs of those characters. Index 0 is
    "any other character".
    """
    vocabulary: NDArray[np.uint64] = field(repr=False)
    """Hashes of the words of the corpus, ascending."""
    num_texts_of_word: NDArray[np.int32] = field(repr=False)
    """The number of texts that contain each word of `vocabulary`."""
    least_common: int
    """A word is common when at least this many texts contain it."""
    scripts: frozenset[int]
    """The corpus's own scripts, as indices into `measures.SCRIPTS`."""
    main_script: frozenset[int]
    """The script of most letters; the Japanese scripts count as one."""
    languages: tuple[str, ...]
    """The corpus's own languages (ISO 639 codes), most common first; empty if none stands out."""
    usual: Mapping[str, Usual]
    """The usual range of every statistic."""
    control_share: float = 0.0
    """The fraction of the corpus's own texts that have control characters."""
    format_share: float = 0.0
    """The fraction of the corpus's own texts that have format characters without need."""

    def measure(self, texts: Sequence[str], *, are_own: bool = False) -> Measured:
        """Compute the cheap statistics of texts. Set `are_own` if the profile was built from
        them.
        """
        laid = lay_out(texts)
        words = words_in(laid)
        num_words = words.per_text()
        num_holding = self._num_texts_of(words.hashes)
        num_known = words.per_text(num_holding >= (2 if are_own else 1))
        num_common = words.per_text(num_holding >= self.least_common)
        counts = measures.class_counts(laid)
        length = laid.lengths.astype(np.float64)
        filled = np.maximum(length - counts[:, measures.SPACE], 0)
        num_letters = counts[:, measures.LOWER] + counts[:, measures.UPPER]
        columns = {
            "length": np.log1p(length),
            "known_words": self._settled("known_words", num_known, num_words, _FEW_WORDS),
            "common_words": self._settled("common_words", num_common, num_words, _FEW_WORDS),
            "surprise": self._settled("surprise", self._sum_of_bits(laid), length, _FEW_LETTERS),
            "distinct": measures.distinct_pairs(words),
            "capitals": self._settled(
                "capitals", counts[:, measures.UPPER], num_letters, _FEW_LETTERS
            ),
            "digits": self._settled("digits", counts[:, measures.DIGIT], filled, _FEW_LETTERS),
            "symbols": self._settled("symbols", counts[:, measures.SYMBOL], filled, _FEW_LETTERS),
            "foreign_letters": self._letters_outside(self.scripts, laid, num_letters),
            "minor_letters": self._letters_outside(self.main_script, laid, num_letters),
            "mis_decoded": _misdecoded(texts, laid),
        }
        if self.usual:
            unknown = self.usual["known_words"].below(columns["known_words"], _SHORT_TAILS[0])
            surprise = self.usual["surprise"].above(columns["surprise"], _SHORT_TAILS[1])
            columns["odd"] = np.clip(unknown, 0, 3) + np.clip(surprise, 0, 3)
        return Measured(num_characters=length, num_words=num_words, counts=counts, columns=columns)

    def familiarity(self, words: Words) -> Floats:
        """Return how common the words of each text are in the corpus: the mean of log10(texts with
        the word); 0 without words.
        """
        logarithms = np.log10(self._num_texts_of(words.hashes) + 0.5)
        return np.bincount(words.text_of_word, logarithms, words.num_texts) / np.maximum(
            words.per_text(), 1
        )

    def _num_texts_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the number of texts in the profile that contain each word."""
        return np.append(self.num_texts_of_word, np.int32(0))[
            measures.places_of(hashes, self.vocabulary)
        ]

    def _settled(self, name: str, sums: Floats, counts: Floats, weight: float) -> Floats:
        usual = self.usual.get(name)
        return settled(
            sums, counts, 0.0 if usual is None else usual.median, 1e-9 if usual is None else weight
        )

    def _sum_of_bits(self, laid: Characters) -> Floats:
        if not len(laid.codes):
            return np.zeros(0)
        folded = measures.folded(np.arange(int(laid.codes.max()) + 1, dtype=np.int32))
        numbers = (measures.places_of(folded, self.characters) + 1).astype(np.int32)[laid.codes]
        bits = self.bits.ravel().take(numbers[:-1] * np.int32(len(self.bits)) + numbers[1:])
        ends = np.cumsum(laid.lengths + 1)
        bits[ends[:-1] - 1] = 0  # not a bigram: the end of one text and the beginning of the next
        if not len(bits):
            return np.zeros(laid.num_texts)
        return np.add.reduceat(
            np.append(bits, np.float32(0)), ends - laid.lengths - 1, dtype=np.float64
        )

    def _letters_outside(
        self, scripts: frozenset[int], laid: Characters, num_letters: Floats
    ) -> Floats:
        """Return the fraction of each text's letters that do not belong to `scripts`."""
        if _LATIN in scripts:
            places = np.flatnonzero(laid.codes > _LAST_LATIN)
        else:
            places = np.arange(len(laid.codes))
        is_outside = np.array(
            [number > 0 and number not in scripts for number in range(len(measures.SCRIPTS))]
        )
        found = places[is_outside[measures.scripts_of(laid.codes[places])]]
        return np.bincount(laid.text_of_code[found], minlength=laid.num_texts) / np.maximum(
            num_letters, 1
        )


def profile_of(texts: Sequence[str]) -> CorpusProfile:
    """Build the profile of a corpus from texts that are mostly normal.

    ```python
    from sonde.texts import find_signs, profile_of

    profile = profile_of(["A man stands on a ladder.", "Two dogs run over the grass."] * 50)
    signs = find_signs("<li><a href='/next'>Two dogs</a></li>", profile)
    assert [sign.kind for sign in signs] == ["markup"]
    ```
    """
    num_format = sum(bool(measures.invisible(text)) for text in texts)
    texts = [measures.visible(text) for text in texts]
    laid = lay_out(texts)
    words = words_in(laid)
    vocabulary, num_texts_of_word = measures.texts_of_words(words)
    characters, bits = _bits_of_pairs(laid)
    of_scripts = np.bincount(measures.scripts_of(laid.codes), minlength=len(measures.SCRIPTS))[1:]
    main = int(of_scripts.argmax()) + 1
    draft = CorpusProfile(
        characters=characters,
        bits=bits,
        vocabulary=vocabulary,
        num_texts_of_word=num_texts_of_word.astype(np.int32),
        least_common=max(int(_COMMON * len(texts)), 2),
        scripts=frozenset(
            (np.flatnonzero(of_scripts >= _OWN_SCRIPT * max(of_scripts.sum(), 1)) + 1).tolist()
        ),
        main_script=_JAPANESE if main in _JAPANESE else frozenset({main}),
        languages=_own_languages(texts),
        usual={},
    )
    # Twice, because shares of short texts are shrunk towards the usual values of the first pass.
    for _ in range(2):
        measured = draft.measure(texts, are_own=True)
        draft = replace(
            draft, usual={name: usual_of(column) for name, column in measured.columns.items()}
        )
    chosen = texts[:: max(len(texts) // _NUM_CHOSEN, 1)]
    close = {
        density.kind: usual_of(np.array([density.find(text).share for text in chosen]))
        for density in DENSITIES
    }
    close["repeated"] = usual_of(np.array([repeated_share(text.split()).share for text in chosen]))
    close["quoted"] = usual_of(np.array([quoted_share(text)[1] for text in chosen]))
    num_control = np.count_nonzero(measured.counts[:, measures.CONTROL])
    return replace(
        draft,
        usual={**draft.usual, **close},
        control_share=num_control / max(len(texts), 1),
        format_share=num_format / max(len(texts), 1),
    )


def _misdecoded(texts: Sequence[str], laid: Characters) -> Floats:
    """Return the mojibake share of each text. Only texts with two adjacent non-ASCII characters are
    examined.
    """
    beyond = laid.codes >= 0xA0
    suspicious = np.unique(laid.text_of_code[:-1][beyond[:-1] & (laid.codes[1:] >= 0x80)])
    shares = np.zeros(len(texts))
    for number in suspicious.tolist():
        shares[number] = misdecoded_share(texts[number])[1]
    return shares


def usual_of(values: Floats) -> Usual:
    """Return the median and the tails of `values`."""
    if not len(values):
        return Usual(0.0, 0.0, 0.0)
    low, median, high = np.quantile(values, [_TAIL, 0.5, 1 - _TAIL])
    return Usual(float(median), float(low), float(high))


def _bits_of_pairs(laid: Characters) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    small = measures.folded(laid.codes)
    seen, counts = np.unique(small, return_counts=True)
    common = np.sort(seen[np.argsort(-counts, kind="stable")[:_NUM_CHARACTERS]])
    numbers = measures.places_of(small, common) + 1
    size = len(common) + 1
    table = np.bincount(numbers[:-1] * size + numbers[1:], minlength=size * size).reshape(
        size, size
    )
    smooth = table + _SMOOTHING
    return common.astype(np.int32), -np.log2(smooth / smooth.sum(1, keepdims=True)).astype(
        np.float32
    )


def _own_languages(texts: Sequence[str]) -> tuple[str, ...]:
    chosen = texts[:: max(len(texts) // _NUM_IDENTIFIED, 1)]
    votes: Counter[str] = Counter()
    for text in chosen:
        found = identify(text[:_MAX_IDENTIFIED])
        if found:
            votes[found[0].language] += 1
    least = max(_OWN_LANGUAGE * sum(votes.values()), 2)
    return tuple(language for language, num in votes.most_common() if num >= least)
