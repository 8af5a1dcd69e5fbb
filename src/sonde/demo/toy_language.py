"""A translation task by rule: English sentences and the same in Velan, a language that exists only here.

    the king loves some new tables beyond a happy child
    belgu mentu nesp le desku nilgon letdon savtar

Velan puts the place first and the verb last; adjectives follow their noun and agree with it in gender and number; a preposition follows
what it governs. So there is something to learn: words, order and agreement. The words are made up from a fixed seed; which sentences there
are depends on the seed that is given.
"""

import functools
import random
from typing import Final, NamedTuple

_NOUNS: Final = (
    *("dog", "cat", "doctor", "child", "teacher", "farmer", "horse", "bird", "sailor", "king", "queen", "painter"),
    *("house", "boat", "garden", "river", "mountain", "window", "letter", "book", "table", "bridge", "tower", "song"),
)
_ADJECTIVES: Final = ("old", "small", "red", "tired", "happy", "green", "quiet", "strong", "new", "dark")
_VERBS: Final = ("find", "follow", "remember", "paint", "visit", "want", "watch", "clean", "love", "open")
_PLACES: Final = ("near", "behind", "under", "beyond")
_PLURALS: Final = {"child": "children"}
_GENDERS: Final = "ou"
"""Nouns end in one of these, and so do the adjectives that go with them."""


class Pair(NamedTuple):
    """A sentence in both languages."""

    english: str
    velan: str


class _Phrase(NamedTuple):
    """A noun with what belongs to it."""

    noun: str
    adjective: str | None
    is_plural: bool
    is_definite: bool

    @property
    def english(self) -> str:
        noun = _PLURALS.get(self.noun, f"{self.noun}s") if self.is_plural else self.noun
        words = [self.adjective, noun] if self.adjective else [noun]
        if self.is_definite:
            return " ".join(["the", *words])
        if self.is_plural:
            return " ".join(["some", *words])
        return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])

    @property
    def velan(self) -> str:
        ending = _gender(self.noun) + "n" * self.is_plural
        words = [_stems()[self.noun] + ending]
        if self.adjective:
            words.append(_stems()[self.adjective] + ending)
        return " ".join(["le", *words] if self.is_definite else words)


def make_pairs(number: int, *, seed: int) -> list[Pair]:
    """So many different sentences."""
    rng = random.Random(seed)
    pairs: dict[Pair, None] = {}
    while len(pairs) < number:
        pairs[_make_pair(rng)] = None
    return list(pairs)


def _make_pair(rng: random.Random) -> Pair:
    # Two of the three have an adjective: sentences are alike in length, and so are batches in loss.
    subject, thing, where = (_make_phrase(rng, described) for described in rng.sample((True, True, False), 3))
    verb, place, is_past = rng.choice(_VERBS), rng.choice(_PLACES), rng.random() < 0.5
    inflected = (verb + ("d" if verb.endswith("e") else "ed")) if is_past else verb + "s" * (not subject.is_plural)
    inflected = {"finded": "found", "watchs": "watches"}.get(inflected, inflected)
    ending = ("it" if is_past else "ar") + "en" * subject.is_plural
    return Pair(
        f"{subject.english} {inflected} {thing.english} {place} {where.english}",
        f"{where.velan} {_stems()[place]} {subject.velan} {thing.velan} {_stems()[verb]}{ending}",
    )


def _make_phrase(rng: random.Random, is_described: bool) -> _Phrase:
    adjective = rng.choice(_ADJECTIVES) if is_described else None
    return _Phrase(rng.choice(_NOUNS), adjective, rng.random() < 0.4, rng.random() < 0.5)


def _gender(noun: str) -> str:
    return _GENDERS[_NOUNS.index(noun) % len(_GENDERS)]


@functools.cache
def _stems() -> dict[str, str]:
    """A stem for every word: two syllables, none twice."""
    rng = random.Random("velan")
    stems: dict[str, str] = {}
    for word in (*_NOUNS, *_ADJECTIVES, *_VERBS, *_PLACES):
        stem = ""
        while not stem or stem in stems.values():
            stem = rng.choice("bdfgklmnprstv") + rng.choice("aei") + rng.choice("lnrstv") + rng.choice("dgkmpt")
        stems[word] = stem
    return stems
