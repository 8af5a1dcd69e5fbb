"""What the texts of a dataset are usually like, from a few hundred of them: the measure that one text is held against.

Every sign of a text (text_signs.py) is a plain number; a profile knows the same number of many other samples of the same dataset, so that
"unusual" means unusual here: code, tables and Chinese are normal where they are normal.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, final

from sonde.texts.languages import language_shares, script_shares, words_of

_SPACE: Final = re.compile(r"\s+")
_NUM_CHARACTERS: Final = 256
"""Characters that count one by one; rarer ones are alike."""
_SMOOTHING: Final = 0.1


def profile_of(texts: Sequence[str]) -> "CorpusProfile":
    """The profile of texts that are taken to be normal."""
    cleaned = [_SPACE.sub(" ", text) for text in texts]
    singles = Counter(character for text in cleaned for character in text)
    common = frozenset(character for character, _ in singles.most_common(_NUM_CHARACTERS))
    pairs: Counter[str] = Counter()
    firsts: Counter[str] = Counter()
    for text in cleaned:
        folded = _folded(text, common)
        pairs.update(map("".join, pairwise(folded)))
        firsts.update(folded[:-1])
    documents: Counter[str] = Counter(word for text in cleaned for word in set(words_of(text)))
    together = " ".join(cleaned[:200])
    languages = language_shares(words_of(together))
    return CorpusProfile(
        characters=common,
        pairs=pairs,
        firsts=firsts,
        documents_of_word=documents,
        scripts=script_shares(together),
        languages={one.language: one.share for one in languages},
    )


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusProfile:
    """Counts of characters and words in normal texts."""

    characters: frozenset[str]
    """Characters that count one by one."""
    pairs: Mapping[str, int] = field(repr=False)
    """How often two characters follow one another."""
    firsts: Mapping[str, int] = field(repr=False)
    """How often each character has one after it."""
    documents_of_word: Mapping[str, int] = field(repr=False)
    """How many of the texts hold each word."""
    scripts: Mapping[str, float]
    """Shares of scripts among the letters."""
    languages: Mapping[str, float]
    """Shares of function words of known languages."""

    def surprise(self, text: str) -> float:
        """Bits a character, given the one before it; NaN for a text of less than two."""
        folded = _folded(_SPACE.sub(" ", text), self.characters)
        if len(folded) < 2:
            return math.nan
        num_kinds = len(self.characters) + 1
        bits = 0.0
        for first, second in pairwise(folded):
            seen = self.pairs.get(first + second, 0) + _SMOOTHING
            bits -= math.log2(seen / (self.firsts.get(first, 0) + _SMOOTHING * num_kinds))
        return bits / (len(folded) - 1)

    def known_words(self, text: str, *, is_own: bool = False) -> float:
        """The part of the words that other texts have too (`is_own`: this text was counted itself); NaN when it has no words."""
        words = words_of(text)
        least = 2 if is_own else 1
        return sum(self.documents_of_word.get(word, 0) >= least for word in words) / len(words) if words else math.nan

    @property
    def language(self) -> str:
        """The language it seems to be in; empty when none stands out."""
        best = max(self.languages.items(), key=lambda item: item[1], default=("", 0.0))
        return best[0] if best[1] >= 0.1 else ""


def _folded(text: str, common: frozenset[str]) -> str:
    return "".join(character if character in common else "\ufffd" for character in text)
