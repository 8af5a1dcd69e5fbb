"""What is unusual about a source and its translation: copied, swapped, truncated or mismatched;
plus the signs of each side.

A pair is compared with other pairs of the same corpus: the usual length ratio of target to source,
how many words the two usually share, how often targets end with sentence punctuation. Copied pairs
are therefore no sign where copies are normal, as in a corpus for code repair.

Whether the words of a target go with those of its source is learned from their co-occurrence in the
corpus itself. For the most common content words of both sides, `Associations` has how strongly each
pair is associated (Dice coefficient). The score of a pair of texts is the mean, over its words, of
the strongest association with a word of the other side. This needs at least a thousand pairs to be
useful; with fewer, scores are low and vary so much that nothing is unusual.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sonde.texts import measures
from sonde.texts.languages import identify, margin, words_of
from sonde.texts.measures import Floats, Words, lay_out, settled, texts_of_words, words_in
from sonde.texts.profile import CorpusProfile, Usual, profile_of, usual_of
from sonde.texts.signs import (
    CLEAR,
    EMPTY,
    EXPLAINS,
    FOREIGN_LANGUAGE,
    GARBLED_TEXT,
    OVER_LONG,
    Sign,
    find_signs_of_all,
    has_clear,
)

COPIED: Final = "copied"
SWAPPED: Final = "swapped"
TRUNCATED: Final = "truncated"
MISMATCHED: Final = "mismatched"
PAIR_KINDS: Final = (COPIED, SWAPPED, TRUNCATED, MISMATCHED)
"""Every kind of sign that only a pair can have."""

_END: Final = re.compile(r"[.!?…。！？؟।»”\"')\]:;]\s*$")
_NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*")
_LEAD: Final = 0.3
"""A text belongs to the other side when its words are more common there by this power of ten."""
_LEAST_RATIO: Final = 0.15
_LEAST_TAIL: Final = 0.05
"""Minimum tail lengths for the length ratio and for how well words go together."""
_FEW_BELONGING: Final = 4.0
_LEAST_BELONGING: Final = 4
"""With fewer known words, do not judge whether a target belongs to its source."""
_LEAST_PAIRS: Final = 100
"""With fewer pairs, do not estimate how well words usually go together."""
_STRANGERS_FOUND: Final = 0.7
"""The fraction of deliberately mismatched targets that the threshold should catch."""
_FEW_CHARACTERS: Final = 12
"""Added to both lengths before they are compared, because the ratio varies more for short
sentences.
"""
_MAX_WORDS: Final = 1500
"""The maximum number of words per side."""
_TOO_COMMON: Final = 0.1
"""Words in a larger fraction of the texts are ignored as uninformative."""
_LEAST_TEXTS: Final = 3
_SCALE: Final = 255
_Known: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Known words of many texts: the text of each, ascending, and its index among the known words."""


class Associations(NamedTuple):
    """Which source and target words go together. Made by `associations_of`."""

    source_words: NDArray[np.uint64]
    """Hashes of the source words, ascending."""
    target_words: NDArray[np.uint64]
    """Hashes of the target words, ascending."""
    strengths: NDArray[np.uint8]
    """Association strengths, (source words, target words), from 0 to 255."""

    def scores(self, sources: Words, targets: Words) -> tuple[Floats, NDArray[np.int64]]:
        """Return, for each pair, the sum over its known words of the best association with the
        other side (0 to 1 each), and their number.
        """
        of_source = _known(sources, self.source_words)
        of_target = _known(targets, self.target_words)
        forth = _best(of_target, of_source, self.strengths.T, sources.num_texts)
        back = _best(of_source, of_target, self.strengths, sources.num_texts)
        return forth[0] + back[0], forth[1] + back[1]


class PairProfile(NamedTuple):
    """What pairs of a corpus are usually like. Made by `pair_profile_of`."""

    source: CorpusProfile
    """The profile of the sources."""
    target: CorpusProfile
    """The profile of the targets."""
    associations: Associations
    """Which source and target words go together."""
    usual: dict[str, Usual]
    """The usual values of the statistics of a pair, by field name of `_Numbers`."""
    sentence_ends: tuple[float, float]
    """The fractions of sources and of targets that end with sentence punctuation."""
    copies: float
    """The fraction of the corpus's pairs that are copies."""
    strange: float
    """The distance below the usual, in tail lengths, from which a target clearly does not match its
    source.
    """


class _Numbers(NamedTuple):
    """Statistics of many pairs."""

    ratio: Floats
    """The logarithm of the ratio of target length to source length."""
    shared: Floats
    """The fraction of the target's words that also occur in the source."""
    belonging: Floats
    """The sum, over all known words of both sides, of how well each goes with the other side."""
    num_belonging: NDArray[np.int64]
    """The number of those words."""


class PairReading(NamedTuple):
    """The signs of a pair."""

    pair: list[Sign]
    """Signs of the pair as a whole, strongest first."""
    source: list[Sign]
    """Signs of the source alone."""
    target: list[Sign]
    """Signs of the target alone."""


def pair_profile_of(sources: Sequence[str], targets: Sequence[str]) -> PairProfile:
    """Build the profile of a corpus from pairs that are mostly normal.

    ```python
    from sonde.texts import find_pair_signs, pair_profile_of

    profile = pair_profile_of(["a house", "two dogs"] * 100, ["ein Haus", "zwei Hunde"] * 100)
    reading = find_pair_signs("a house", "a house", profile)
    ```
    """
    of_sides = profile_of(sources), profile_of(targets)
    sources = [measures.visible(text) for text in sources]
    targets = [measures.visible(text) for text in targets]
    # Learn associations from four of five pairs, and measure how well words usually go together on
    # the rest.
    words = words_in(lay_out(sources)), words_in(lay_out(targets))
    associations = associations_of(_without_every_fifth(words[0]), _without_every_fifth(words[1]))
    numbers = _numbers_of(sources, targets, words, associations)
    usual = {"ratio": usual_of(numbers.ratio), "shared": usual_of(numbers.shared)}
    # Leave out copies and pairs with unusual length ratios: a few of them would stretch the tail.
    odd = _odd(numbers, usual)
    said = (numbers.num_belonging[::5] >= _LEAST_BELONGING) & ~odd[::5]
    means = numbers.belonging[::5][said] / numbers.num_belonging[::5][said]
    median = float(np.median(means)) if len(means) else 0.0
    belonging = settled(numbers.belonging[::5], numbers.num_belonging[::5], median, _FEW_BELONGING)[
        said
    ]
    usual["belonging"] = (
        usual_of(belonging) if len(belonging) >= _LEAST_PAIRS else Usual(0.0, 0.0, 0.0)
    )
    # Pair each source with the target of the next pair.
    moved = words_in(lay_out([*targets[5::5], *targets[:1]]))
    score, num_scored = associations.scores(words_in(lay_out(sources[::5])), moved)
    strangers = settled(score, num_scored, median, _FEW_BELONGING)[num_scored >= _LEAST_BELONGING]
    ends = [
        float(np.mean([bool(_END.search(text)) for text in side])) if side else 0.0
        for side in (sources, targets)
    ]
    pairs = zip(sources, targets, strict=True)
    copies = [_plain(source) == _plain(target) for source, target in pairs]
    return PairProfile(
        source=of_sides[0],
        target=of_sides[1],
        associations=associations,
        usual=usual,
        sentence_ends=(ends[0], ends[1]),
        copies=float(np.mean(copies)) if copies else 0.0,
        strange=_strange_from(belonging, strangers, usual["belonging"]),
    )


def _strange_from(own: Floats, strangers: Floats, usual: Usual) -> float:
    """Return the threshold, in tail lengths below the usual, that most mismatched targets exceed
    but hardly any of the corpus's own pairs.
    """
    if len(own) < _LEAST_PAIRS or not len(strangers):
        return 1.0
    bound = min(float(np.quantile(strangers, _STRANGERS_FOUND)), float(np.quantile(own, 0.01)))
    return max(usual.below(bound, _LEAST_TAIL), 0.3)


def _without_every_fifth(words: Words) -> Words:
    kept = words.text_of_word % 5 != 0
    return Words(words.hashes[kept], words.text_of_word[kept], words.num_texts)


def _numbers_of(
    sources: Sequence[str],
    targets: Sequence[str],
    words: tuple[Words, Words],
    associations: Associations,
) -> _Numbers:
    lengths = [
        np.fromiter(map(len, side), np.float64, len(side)) + _FEW_CHARACTERS
        for side in (sources, targets)
    ]
    # With the text in the upper bits, successive searches stay close together.
    keys = [
        (side.text_of_word.astype(np.uint64) << np.uint64(40)) | (side.hashes >> np.uint64(24))
        for side in words
    ]
    known = np.append(np.sort(keys[0]), np.uint64((1 << 64) - 1))
    is_shared = known[np.searchsorted(known, keys[1])] == keys[1]
    belonging, num_belonging = associations.scores(*words)
    return _Numbers(
        ratio=np.log(lengths[1] / lengths[0]),
        shared=words[1].per_text(is_shared) / np.maximum(words[1].per_text(), 1),
        belonging=belonging,
        num_belonging=num_belonging,
    )


def find_pair_signs(source: str, target: str, profile: PairProfile) -> PairReading:
    """Return the signs of one pair."""
    return find_signs_of_pairs([source], [target], profile)[0]


def find_signs_of_pairs(
    sources: Sequence[str], targets: Sequence[str], profile: PairProfile
) -> list[PairReading]:
    """Return the signs of many pairs. A side of a swapped or copied pair is not also reported as
    foreign language.
    """
    of_sources = _Side(sources, profile.source, profile.target)
    of_targets = _Side(targets, profile.target, profile.source)
    words = of_sources.words, of_targets.words
    numbers = _numbers_of(of_sources.texts, of_targets.texts, words, profile.associations)
    odd = _odd(numbers, profile.usual)
    odd |= (
        (of_sources.leads > _LEAD)
        | (of_targets.leads > _LEAD)
        | (of_sources.has_digits & of_targets.has_digits)
    )
    strangeness = _unbelonging(numbers, profile)
    odd |= strangeness > 0
    of_sides = zip(of_sources.signs, of_targets.signs, strict=True)
    found = [PairReading([], of_source, of_target) for of_source, of_target in of_sides]
    for number in np.flatnonzero(odd).tolist():
        found[number] = _read(number, (of_sources, of_targets), numbers, strangeness, profile)
    return found


def _odd(numbers: _Numbers, usual: Mapping[str, Usual]) -> NDArray[np.bool_]:
    """Return which pairs have an unusual ratio of lengths or share many words."""
    ratio = usual["ratio"]
    shared = numbers.shared
    odd = (ratio.below(numbers.ratio, _LEAST_RATIO) > 1) | (
        ratio.above(numbers.ratio, _LEAST_RATIO) > 1
    )
    return odd | ((shared > 0.5) & (shared > usual["shared"].high))


def _unbelonging(numbers: _Numbers, profile: PairProfile) -> Floats:
    """Return how far below the usual, in tail lengths, the words of each pair go together; 0 with
    too few known words.
    """
    usual = profile.usual["belonging"]
    below = usual.below(
        settled(numbers.belonging, numbers.num_belonging, usual.median, _FEW_BELONGING), _LEAST_TAIL
    )
    return np.where(numbers.num_belonging >= _LEAST_BELONGING, below, 0.0)


class _Side:
    """The texts of one side and their own signs."""

    def __init__(self, texts: Sequence[str], own: CorpusProfile, other: CorpusProfile) -> None:
        self.texts = [measures.visible(text) for text in texts]
        self.signs = find_signs_of_all(texts, own)
        laid = lay_out(self.texts)
        self.words = words_in(laid)
        self.has_digits = measures.class_counts(laid)[:, measures.DIGIT] > 0
        self.leads = other.familiarity(self.words) - own.familiarity(self.words)
        self._languages = own.languages if own.languages != other.languages else ()

    def lead(self, number: int) -> float:
        """Return log10 of how much more common the text's words are on the other side; 0 if it is
        clearly in its own language.
        """
        text = self.texts[number]
        lead = min(float(self.leads[number]), 1.0)
        if lead < _LEAD or len(words_of(text)) < 3:
            return 0.0
        return 0.0 if self._languages and margin(identify(text), self._languages) < -0.7 else lead


def _read(
    number: int,
    of_sides: tuple[_Side, _Side],
    numbers: _Numbers,
    strangeness: Floats,
    profile: PairProfile,
) -> PairReading:
    of_sources, of_targets = of_sides
    source = of_sources.texts[number]
    target = of_targets.texts[number]
    sides = [of_sources.signs[number], of_targets.signs[number]]
    if any(sign.kind == EMPTY for sign in (*sides[0], *sides[1])):
        return PairReading([], *sides)
    leads = of_sources.lead(number), of_targets.lead(number)
    found = _copied(source, target, float(numbers.shared[number]), profile) or _swapped(leads)
    if found is not None:
        explained = (FOREIGN_LANGUAGE, GARBLED_TEXT)
        return PairReading([found], *(_without(side, explained) for side in sides))
    length = _length(source, target, float(numbers.ratio[number]), profile)
    if length is not None:
        sides = [_without(side, (OVER_LONG,)) for side in sides]
    of_pair = (
        length,
        _different_numbers(source, target),
        _stranger(number, numbers, float(strangeness[number]), profile),
    )
    pair = [sign for sign in of_pair if sign is not None]
    return PairReading(
        sorted(pair, key=lambda sign: -sign.strength),
        _with_other_language(sides[0], "source", leads[0]),
        _with_other_language(sides[1], "target", leads[1]),
    )


def _without(signs: Sequence[Sign], kinds: Collection[str]) -> list[Sign]:
    return [sign for sign in signs if sign.kind not in kinds]


def _with_other_language(signs: list[Sign], side: str, lead: float) -> list[Sign]:
    """Add a sign to those of a side if its words are those of the other side."""
    if not lead > _LEAD or has_clear(signs, (FOREIGN_LANGUAGE, *EXPLAINS)):
        return signs
    sentence = f"the {side} is in the other side's language"
    return [Sign(FOREIGN_LANGUAGE, min(1.0, 0.3 + lead), (sentence,)), *signs]


def _copied(source: str, target: str, share: float, profile: PairProfile) -> Sign | None:
    other = words_of(target)
    is_same = _plain(source) == _plain(target)
    excess = profile.usual["shared"].above(share, 0.1)
    if (
        profile.copies > 0.05
        or len(other) < 2
        or (not is_same and (len(other) < 6 or share < 0.8 or excess < 1))
    ):
        return None
    if is_same:
        strength = 1.0 if len(other) >= 4 else 0.45
        return Sign(COPIED, strength, ("the target is the source",))
    sentence = (
        f"{share:.0%} of the words of the target are those of the source (corpus median"
        f" {profile.usual['shared'].median:.0%})"
    )
    return Sign(COPIED, min(1.0, share, 0.4 + 0.2 * excess), (sentence,))


def _swapped(leads: tuple[float, float]) -> Sign | None:
    if min(leads) <= _LEAD:
        return None
    sentence = "the source reads like the targets of the corpus and the target like its sources"
    return Sign(SWAPPED, min(1.0, 0.5 + min(leads)), (sentence,))


def _length(source: str, target: str, ratio: float, profile: PairProfile) -> Sign | None:
    usual = profile.usual["ratio"]
    short = usual.below(ratio, _LEAST_RATIO)
    long = usual.above(ratio, _LEAST_RATIO)
    beyond = max(short, long)
    if beyond < 1:
        return None
    source_ends, target_ends = profile.sentence_ends
    if short > long:
        side = "target"
        text = target
        ends = target_ends
    else:
        side = "source"
        text = source
        ends = source_ends
    times = np.exp(ratio)
    median = np.exp(usual.median)
    sentence = f"the target is {times:.2f} times as long as the source (corpus median {median:.2f})"
    if ends <= 0.8:  # how a text ends is not informative here
        return Sign(TRUNCATED, min(1.0, 0.2 * beyond), (sentence,))
    if _END.search(text):
        ending = f"and the {side} ends like a sentence"
        return Sign(MISMATCHED, min(1.0, 0.2 * beyond), (sentence, ending))
    cut = f"the {side} does not end like a sentence, {ends:.0%} of {side}s do"
    return Sign(TRUNCATED, min(1.0, 0.2 + 0.2 * beyond), (sentence, cut))


def _different_numbers(source: str, target: str) -> Sign | None:
    """Report a pair whose two sides share no number."""
    in_source = _numbers_in(source)
    in_target = _numbers_in(target)
    if len(in_source) < 2 or len(in_target) < 2 or in_source & in_target:
        return None
    sentence = (
        f"no number of the source ({', '.join(sorted(in_source)[:4])}) is in the target"
        f" ({', '.join(sorted(in_target)[:4])})"
    )
    fewest = min(len(in_source), len(in_target))
    return Sign(MISMATCHED, min(0.8, 0.35 + 0.1 * fewest), (sentence,))


def _numbers_in(text: str) -> set[str]:
    """Return the numbers of a text as digits only."""
    return {re.sub(r"\D", "", number) for number in _NUMBER.findall(text)}


def _stranger(number: int, numbers: _Numbers, below: float, profile: PairProfile) -> Sign | None:
    """Report a pair whose words do not go together."""
    if below <= 0:
        return None
    sentence = (
        f"{numbers.num_belonging[number]} words of the two sides were looked up: they go together"
        f" by {numbers.belonging[number] / numbers.num_belonging[number]:.0%} (corpus median"
        f" {profile.usual['belonging'].median:.0%})"
    )
    return Sign(MISMATCHED, min(1.0, CLEAR * below / profile.strange), (sentence,))


def _plain(text: str) -> str:
    return " ".join(words_of(text)) or text.strip()


def _best(
    own: _Known, other: _Known, strengths: NDArray[np.uint8], num: int
) -> tuple[Floats, NDArray[np.int64]]:
    """Return, for each text, the sum of the best association of each of its words with the other
    side, and the number of those words.
    """
    num_others = np.bincount(other[0], minlength=num)
    firsts = np.cumsum(num_others) - num_others
    has_others = num_others[own[0]] > 0
    texts = own[0][has_others]
    ids = own[1][has_others]
    if not len(texts):
        return np.zeros(num), np.zeros(num, np.int64)
    # Every word combined with every word of the other side, flattened.
    sizes = num_others[texts]
    begins = np.cumsum(sizes) - sizes
    places = np.arange(sizes.sum()) - np.repeat(begins - firsts[texts], sizes)
    best = np.maximum.reduceat(strengths[np.repeat(ids, sizes), other[1][places]], begins) / _SCALE
    return np.bincount(texts, best, num).astype(np.float64), np.bincount(texts, minlength=num)


def associations_of(sources: Words, targets: Words) -> Associations:
    """Learn which words go together from the words of pairs."""
    source_words = _content_words(sources)
    target_words = _content_words(targets)
    held = [
        _holds(side, words) for side, words in ((sources, source_words), (targets, target_words))
    ]
    together = held[0].T @ held[1]
    sums = held[0].sum(0)[:, None] + held[1].sum(0)[None, :]
    strengths = np.where(together >= 2, 2 * together / np.maximum(sums, 1), 0)
    return Associations(source_words, target_words, np.round(_SCALE * strengths).astype(np.uint8))


def _content_words(words: Words) -> NDArray[np.uint64]:
    known, counts = texts_of_words(words)
    wanted = np.flatnonzero(
        (counts >= _LEAST_TEXTS) & (counts <= max(_TOO_COMMON * words.num_texts, _LEAST_TEXTS))
    )
    commonest = wanted[np.argsort(-counts[wanted], kind="stable")[:_MAX_WORDS]]
    return np.sort(known[commonest])


def _holds(side: Words, words: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return an array (texts, words) that is 1 where a text contains a word."""
    held = np.zeros((side.num_texts, len(words)), np.float32)
    held[_known(side, words)] = 1
    return held


def _known(found: Words, words: NDArray[np.uint64]) -> _Known:
    ids = measures.places_of(found.hashes, words)
    return found.text_of_word[ids >= 0], ids[ids >= 0]
