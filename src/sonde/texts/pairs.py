"""What is odd about a pair of texts, a source and its translation: copied, swapped, truncated, mismatched; beside the signs of each side.

A pair is held against pairs of the same corpus: how long a target usually is beside its source, how many words the two usually share, how
often targets end a sentence. So copied pairs are no sign where copies are normal, as in a corpus of code to be repaired.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import numpy as np

from sonde.texts.languages import identify, margin, words_of
from sonde.texts.profile import CorpusProfile, Usual, usual_of
from sonde.texts.signs import CLEAR, EMPTY, FOREIGN_LANGUAGE, GARBLED_TEXT, OVER_LONG, Sign, profile_of, read_texts

COPIED: Final = "copied"
SWAPPED: Final = "swapped"
TRUNCATED: Final = "truncated"
MISMATCHED: Final = "mismatched"
PAIR_KINDS: Final = (COPIED, SWAPPED, TRUNCATED, MISMATCHED)
"""Every kind of sign that only a pair can have."""

_END: Final = re.compile(r"[.!?…。！？؟।»”\"')\]:;]\s*$")
_NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*")
_FEW_CHARACTERS: Final = 12
"""Lengths are compared as if so many characters stood beside both sides: short sentences vary more."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PairProfile:
    """What pairs of a corpus are usually like. Made by `pair_profile_of`."""

    source: CorpusProfile
    """What sources are like."""
    target: CorpusProfile
    """What targets are like."""
    usual: dict[str, Usual]
    """Usual values of the numbers of a pair: `ratio` (the logarithm of the target's length over the source's), `shared`."""
    sentence_ends: tuple[float, float]
    """The part of the sources, and of the targets, that end like a sentence."""
    copies: float = 0.0
    """The part of its own pairs that are copies."""


class PairReading(NamedTuple):
    """The signs of a pair."""

    pair: list[Sign]
    """Of the two together, strongest first."""
    source: list[Sign]
    """Of the source by itself."""
    target: list[Sign]
    """Of the target by itself."""


def pair_profile_of(sources: Sequence[str], targets: Sequence[str]) -> PairProfile:
    """The profile of pairs that are taken to be normal on the whole."""
    ratios = np.array([_ratio(*pair) for pair in zip(sources, targets, strict=True)])
    shared = np.array([_shared(words_of(one), words_of(other)) for one, other in zip(sources, targets, strict=True)])
    ends = [float(np.mean([bool(_END.search(text)) for text in side])) for side in (sources, targets)]
    copies = float(np.mean([_plain(one) == _plain(other) for one, other in zip(sources, targets, strict=True)]))
    return PairProfile(
        source=profile_of(sources),
        target=profile_of(targets),
        usual={"ratio": usual_of(ratios), "shared": usual_of(shared)},
        sentence_ends=(ends[0], ends[1]),
        copies=copies,
    )


def read_pair(source: str, target: str, profile: PairProfile) -> PairReading:
    """The signs of one pair."""
    return read_pairs([source], [target], profile)[0]


def read_pairs(sources: Sequence[str], targets: Sequence[str], profile: PairProfile) -> list[PairReading]:
    """The signs of many pairs. What only the pair explains (swapped, copied) is not said again of a side as a foreign language."""
    of_sources = _Side(sources, profile.source, profile.target)
    of_targets = _Side(targets, profile.target, profile.source)
    return [_read(number, of_sources, of_targets, profile) for number in range(len(sources))]


@final
class _Side:
    """The texts of one side, read by themselves."""

    def __init__(self, texts: Sequence[str], own: CorpusProfile, other: CorpusProfile) -> None:
        self.texts = texts
        self.signs = read_texts(texts, own)
        self._leads = other.known_shares(texts) - own.known_shares(texts)
        self._own = own if own.languages != other.languages else None

    def lead(self, number: int) -> float:
        """How much more of a text's words the other side of the corpus knows than its own; 0 where its own language is read in it."""
        text, lead = self.texts[number], float(self._leads[number])
        if lead < 0.3 or len(words_of(text)) < 3:
            return 0.0
        languages = self._own.languages if self._own else ()
        return 0.0 if languages and margin(identify(text), languages) < -0.7 else lead


def languages_of(source: str, target: str) -> tuple[str, str]:
    """The likeliest language of each side, as ISO 639 codes; empty where nothing tells."""
    found = [identify(text) for text in (source, target)]
    return found[0][0].language if found[0] else "", found[1][0].language if found[1] else ""


def _read(number: int, of_sources: _Side, of_targets: _Side, profile: PairProfile) -> PairReading:
    source, target = of_sources.texts[number], of_targets.texts[number]
    sides = [of_sources.signs[number], of_targets.signs[number]]
    if any(one.kind == EMPTY for side in sides for one in side):
        return PairReading([], *sides)
    leads = of_sources.lead(number), of_targets.lead(number)
    found = _copied(source, target, profile) or _swapped(leads)
    if found is not None:
        languages = (FOREIGN_LANGUAGE, GARBLED_TEXT)
        return PairReading([found], *([one for one in side if one.kind not in languages] for side in sides))
    length = _length(source, target, profile)
    pair = sorted((one for one in (length, _numbers(source, target)) if one is not None), key=lambda one: -one.strength)
    for place, name in enumerate(("source", "target")):
        if length is not None:  # said already
            sides[place] = [one for one in sides[place] if one.kind != OVER_LONG]
        if leads[place] > 0.4 and not any(
            one.kind == FOREIGN_LANGUAGE and one.strength >= CLEAR for one in sides[place]
        ):
            told = f"the {name} is in the other side's language"
            sides[place] = [Sign(FOREIGN_LANGUAGE, min(1.0, 0.3 + leads[place]), (told,)), *sides[place]]
    return PairReading(pair, *sides)


def _copied(source: str, target: str, profile: PairProfile) -> Sign | None:
    one, other = words_of(source), words_of(target)
    share = _shared(one, other)
    is_same = _plain(source) == _plain(target)
    excess = profile.usual["shared"].above(share, 0.1)
    if profile.copies > 0.05 or len(other) < 2 or (not is_same and (len(other) < 5 or share < 0.75 or excess < 1)):
        return None
    if is_same:
        strength = 1.0 if len(other) >= 4 else 0.55
        return Sign(COPIED, strength, ("the target is the source",))
    told = f"{share:.0%} of the words of the target are those of the source (corpus median {profile.usual['shared'].median:.0%})"
    return Sign(COPIED, min(1.0, share, 0.4 + 0.2 * excess), (told,))


def _swapped(leads: tuple[float, float]) -> Sign | None:
    if min(leads) <= 0.3:
        return None
    told = "the source reads like the targets of the corpus and the target like its sources"
    return Sign(SWAPPED, min(1.0, 0.5 + min(leads)), (told,))


def _length(source: str, target: str, profile: PairProfile) -> Sign | None:
    ratio, usual = _ratio(source, target), profile.usual["ratio"]
    short, long = usual.below(ratio, 0.15), usual.above(ratio, 0.15)
    beyond = max(short, long)
    if beyond < 1:
        return None
    side, text, ends = (
        ("target", target, profile.sentence_ends[1]) if short > long else ("source", source, profile.sentence_ends[0])
    )
    times, median = np.exp(ratio), np.exp(usual.median)
    told = f"the target is {times:.2f} times as long as the source (corpus median {median:.2f})"
    if ends <= 0.8:  # how a text ends says nothing here
        return Sign(TRUNCATED, min(1.0, 0.2 * beyond), (told,))
    if _END.search(text):
        return Sign(MISMATCHED, min(1.0, 0.2 * beyond), (told, f"and the {side} ends like a sentence"))
    cut = f"the {side} does not end like a sentence, {ends:.0%} of {side}s do"
    return Sign(TRUNCATED, min(1.0, 0.2 + 0.2 * beyond), (told, cut))


def _numbers(source: str, target: str) -> Sign | None:
    """Do the numbers of the two sides disagree?"""
    one, other = ({re.sub(r"\D", "", number) for number in _NUMBER.findall(text)} for text in (source, target))
    if len(one) < 2 or len(other) < 2 or one & other:
        return None
    told = f"no number of the source ({', '.join(sorted(one)[:4])}) is in the target ({', '.join(sorted(other)[:4])})"
    return Sign(MISMATCHED, min(0.8, 0.35 + 0.1 * min(len(one), len(other))), (told,))


def _ratio(source: str, target: str) -> float:
    return float(np.log((len(target) + _FEW_CHARACTERS) / (len(source) + _FEW_CHARACTERS)))


def _shared(one: list[str], other: list[str]) -> float:
    """The part of the second's words that are also in the first."""
    words = set(one)
    return sum(word in words for word in other) / len(other) if other else 0.0


def _plain(text: str) -> str:
    return " ".join(words_of(text)) or text.strip()
