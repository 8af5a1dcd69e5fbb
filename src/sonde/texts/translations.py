"""Check whether the words of a target go with those of its source, learned from word co-occurrence in the corpus itself.

For the most common content words of both sides, it stores how strongly each pair is associated (Dice coefficient). The
score of a pair of texts is the mean, over its words, of the strongest association with a word of the other side. This
needs at least a thousand pairs to be useful; with fewer, scores are low and vary so much that nothing is unusual.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sonde.texts.measures import Floats, Words, texts_of_words

_MAX_WORDS: Final = 1500
"""The maximum number of words per side."""
_TOO_COMMON: Final = 0.1
"""Words in a larger fraction of the texts are ignored as uninformative."""
_LEAST_TEXTS: Final = 3
_SCALE: Final = 255


class Associations(NamedTuple):
    """Which source and target words go together. Made by `associations_of`."""

    source_words: NDArray[np.uint64]
    """Hashes of the source words, ascending."""
    target_words: NDArray[np.uint64]
    """Hashes of the target words, ascending."""
    strengths: NDArray[np.uint8]
    """Association strengths, (source words, target words), from 0 to 255."""

    def scores(self, sources: Words, targets: Words) -> tuple[Floats, NDArray[np.int64]]:
        """Return, for each pair, the sum over its known words of the best association with the other side (0 to 1 each), and their number."""
        of_source, of_target = _known(sources, self.source_words), _known(targets, self.target_words)
        forth = _best(of_target, of_source, self.strengths.T, sources.num_texts)
        back = _best(of_source, of_target, self.strengths, sources.num_texts)
        return forth[0] + back[0], forth[1] + back[1]


def _best(own: "_Known", other: "_Known", strengths: NDArray[np.uint8], num: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return, for each text, the sum of the best association of each of its words with the other side, and the number of those words."""
    num_others = np.bincount(other.texts, minlength=num)
    firsts = np.cumsum(num_others) - num_others
    scored = num_others[own.texts] > 0
    texts, ids = own.texts[scored], own.ids[scored]
    if not len(texts):
        return np.zeros(num), np.zeros(num, np.int64)
    # Every word combined with every word of the other side, flattened.
    sizes = num_others[texts]
    begins = np.cumsum(sizes) - sizes
    places = np.arange(sizes.sum()) - np.repeat(begins - firsts[texts], sizes)
    best = np.maximum.reduceat(strengths[np.repeat(ids, sizes), other.ids[places]], begins) / _SCALE
    return np.bincount(texts, best, num).astype(np.float64), np.bincount(texts, minlength=num)


def associations_of(sources: Words, targets: Words) -> Associations:
    """Learn which words go together from the words of pairs."""
    source_words, target_words = _content_words(sources), _content_words(targets)
    held = [_holds(side, words) for side, words in ((sources, source_words), (targets, target_words))]
    together = held[0].T @ held[1]
    sums = held[0].sum(0)[:, None] + held[1].sum(0)[None, :]
    strengths = np.where(together >= 2, 2 * together / np.maximum(sums, 1), 0)
    return Associations(source_words, target_words, np.round(_SCALE * strengths).astype(np.uint8))


def _content_words(words: Words) -> NDArray[np.uint64]:
    known, counts = texts_of_words(words)
    wanted = np.flatnonzero((counts >= _LEAST_TEXTS) & (counts <= max(_TOO_COMMON * words.num_texts, _LEAST_TEXTS)))
    commonest = wanted[np.argsort(-counts[wanted], kind="stable")[:_MAX_WORDS]]
    return np.sort(known[commonest])


def _holds(side: Words, words: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return an array (texts, words) that is 1 where a text contains a word."""
    found = _known(side, words)
    held = np.zeros((side.num_texts, len(words)), np.float32)
    held[found.texts, found.ids] = 1
    return held


class _Known(NamedTuple):
    """The known words of many texts."""

    texts: NDArray[np.int64]
    """The index of the text that each word belongs to, ascending."""
    ids: NDArray[np.int64]
    """The index of each word."""


def _known(found: Words, words: NDArray[np.uint64]) -> _Known:
    if not len(words) or not len(found.hashes):
        return _Known(np.zeros(0, np.int64), np.zeros(0, np.int64))
    ids = np.minimum(np.searchsorted(words, found.hashes), len(words) - 1)
    is_known = words[ids] == found.hashes
    return _Known(found.text_of_word[is_known], ids[is_known])
