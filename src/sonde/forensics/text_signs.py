"""What is odd about a text: repetition, garbling, a foreign language; plain measures, and what they say against a corpus.

Decisions only: texts and numbers in, a `Reading` out. A reading says which kind of oddity it is, how sure that is (0 to 1), and in words why.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from sonde.forensics.corpus_profile import CorpusProfile, Spread
from sonde.forensics.languages import language_shares, script_shares, words_of
from sonde.forensics.verdict import FOREIGN_LANGUAGE, GARBLED_TEXT, REPETITION

_MAX_PERIOD: Final = 16
"""Tokens of the longest pattern whose repetition is looked for."""
_REPEATED: Final = 0.6
"""A text is repetitive when so much of it repeats what stands a period before,"""
_ODD_Z: Final = 4.0
"""and odd when its characters follow one another so many deviations less predictably than usual."""
_FEW_KNOWN: Final = 0.01
"""Known words are few when so small a part of normal texts has fewer."""
_FOREIGN_SHARE: Final = 0.10
"""So many words must be function words of a language, to be sure of it."""
_VOWELS: Final = frozenset("aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýœąęěıůűőáéíóúăâî")
_CLUSTER: Final = re.compile(r"[^aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýœąęěıůűőăâî]{5,}")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TextMeasures:
    """The signs of one text as numbers."""

    surprise: float
    """Bits a character under the corpus's pairs of characters."""
    known_words: float
    """Part of the words that the corpus has too."""
    letters: float
    """Part of the characters that are letters or spaces."""
    broken: float
    """Part of the characters that no text has: replacement and control characters, unassigned ones."""
    wordlike: float
    """Part of the words of four letters and more that could be pronounced."""
    repeated: float
    """Part of the tokens that repeat what stands a short period before."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TextSpread:
    """The measures of many normal texts."""

    surprise: Spread
    known_words: Spread
    letters: Spread
    repeated: Spread


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a text was read as."""

    cause: str
    """GARBLED_TEXT, FOREIGN_LANGUAGE, REPETITION; empty when it reads like the others."""
    strength: float
    """How clear it is, from 0 to 1."""
    evidence: tuple[str, ...] = ()
    """Why, in sentences."""


def measure_text(text: str, tokens: Sequence[int], profile: CorpusProfile, *, is_own: bool = False) -> TextMeasures:
    """The measures of one text and its tokens; `is_own` when the profile was made with it."""
    text = text.strip("\ufffd")  # a block may begin or end inside a character
    return TextMeasures(
        surprise=profile.surprise(text),
        known_words=profile.known_words(text, is_own=is_own),
        letters=_share(text, lambda one: one.isalpha() or one.isspace()),
        broken=_share(text, _is_broken),
        wordlike=_wordlike(words_of(text)),
        repeated=repeated_share(tokens)[0],
    )


def spread_of(measures: Sequence[TextMeasures]) -> TextSpread:
    """The spread of the measures of normal texts."""
    return TextSpread(
        surprise=Spread([one.surprise for one in measures]),
        known_words=Spread([one.known_words for one in measures]),
        letters=Spread([one.letters for one in measures]),
        repeated=Spread([one.repeated for one in measures]),
    )


def repeated_share(tokens: Sequence[int]) -> tuple[float, int]:
    """The part of the tokens that are equal to the one a period before, for the period where it is greatest; and that period."""
    best, best_period = 0.0, 1
    for period in range(1, min(_MAX_PERIOD, len(tokens) // 3) + 1):
        same = sum(map(int.__eq__, tokens, tokens[period:])) / (len(tokens) - period)
        if same > best + 1e-9:
            best, best_period = same, period
    return best, best_period


def read_text(
    text: str, tokens: Sequence[int], measures: TextMeasures, profile: CorpusProfile, spread: TextSpread
) -> Reading:
    """What a text is, against its corpus."""
    repetition = _read_repetition(tokens, measures, spread)
    if repetition is not None:
        return repetition
    oddity = _oddity(measures, spread)
    if oddity <= 0:
        return Reading(cause="", strength=0.0)
    foreign, language, why_foreign = _foreignness(text, measures, profile)
    garbled, why_garbled = _garbledness(text, measures, spread)
    how_odd = (
        f"its characters cost {measures.surprise:.1f} bits each, those of other texts {spread.surprise.median:.1f}; "
        f"{_percent(measures.known_words)} of its words occur elsewhere, usually {_percent(spread.known_words.median)}"
    )
    if foreign >= garbled:
        strength = oddity * min(1.0, 0.5 + foreign - garbled)
        told = f"it reads as {language}" if language else "it reads as words, but not as those of the corpus"
        return Reading(cause=FOREIGN_LANGUAGE, strength=strength, evidence=(told, *why_foreign, how_odd))
    strength = oddity * min(1.0, 0.5 + garbled - foreign)
    return Reading(cause=GARBLED_TEXT, strength=strength, evidence=(*why_garbled, how_odd))


def is_like_the_source(target: str, source: str, target_profile: CorpusProfile, source_profile: CorpusProfile) -> bool:
    """Is a target in the source's language? By which of the two profiles it is less of a surprise to."""
    if not target.strip():
        return False
    if " ".join(target.split()) == " ".join(source.split()):
        return True
    return source_profile.surprise(target) + 0.7 < target_profile.surprise(target)


def _read_repetition(tokens: Sequence[int], measures: TextMeasures, spread: TextSpread) -> Reading | None:
    if measures.repeated < _REPEATED or spread.repeated.share_below(measures.repeated) < 0.99:
        return None
    share, period = repeated_share(tokens)
    common, count = Counter(tokens).most_common(1)[0]
    what = (
        f"token {common} makes up {count} of its {len(tokens)} tokens"
        if period == 1
        else f"a pattern of {period} tokens"
    )
    return Reading(
        cause=REPETITION,
        strength=min(1.0, (share - 0.4) / 0.5),
        evidence=(
            f"{what}: {_percent(share)} of it repeats itself, of other texts {_percent(spread.repeated.median)}",
        ),
    )


def _oddity(measures: TextMeasures, spread: TextSpread) -> float:
    """From 0, a text like the others, to 1, a text like none of them."""
    z = spread.surprise.z(measures.surprise)
    z = 0.0 if math.isnan(z) else z
    below = spread.known_words.share_below(measures.known_words)
    few_known = not math.isnan(measures.known_words) and below <= _FEW_KNOWN
    is_new = spread.surprise.share_below(measures.surprise) >= 0.99
    if measures.broken > 0.02:
        return 1.0
    if not is_new and not few_known:
        return 0.0
    odd = (z / _ODD_Z + (1.0 if few_known else 0.0)) / 2
    return max(0.0, min(1.0, odd)) if z > 1.5 or few_known else 0.0


def _foreignness(text: str, measures: TextMeasures, profile: CorpusProfile) -> tuple[float, str, tuple[str, ...]]:
    """How much speaks for another language, which one, and why."""
    scripts = script_shares(text)
    script, share = max(scripts.items(), key=lambda item: item[1], default=("", 0.0))
    if script and profile.scripts.get(script, 0.0) < 0.05 and share > 0.8 and measures.letters > 0.7:
        return 1.0, script.capitalize(), (f"{_percent(share)} of its letters are {script.capitalize()}",)
    words = words_of(text)
    own = profile.language
    for language, of_words in language_shares(words):
        if language == own:
            continue
        surplus = of_words - profile.languages.get(language, 0.0)
        own_share = sum(word in profile.documents_of_word for word in words) / max(len(words), 1)
        if surplus >= _FOREIGN_SHARE:
            told = f"{_percent(of_words)} of its words are little words of {language}"
            return min(1.0, 0.5 + 2 * surplus) * measures.letters, language, (told, f"{_percent(own_share)} are known")
        break
    plain = measures.letters * measures.wordlike
    return max(0.0, plain - 0.4), "", (f"{_percent(measures.wordlike)} of its longer words could be spoken",)


def _garbledness(text: str, measures: TextMeasures, spread: TextSpread) -> tuple[float, tuple[str, ...]]:
    """How much speaks for garbling, and why."""
    why = []
    score = 0.0
    if measures.broken > 0.005:
        score += min(1.0, 20 * measures.broken)
        why.append(f"{_percent(measures.broken)} of its characters are none: broken bytes or control characters")
    fewer_letters = spread.letters.median - measures.letters
    if fewer_letters > 0.1:
        score += min(0.8, 2 * fewer_letters)
        why.append(
            f"{_percent(measures.letters)} of its characters are letters, usually {_percent(spread.letters.median)}"
        )
    unspoken = 1.0 - measures.wordlike
    score += 0.7 * unspoken
    if unspoken > 0.3:
        why.append(f"{_percent(unspoken)} of its longer words cannot be spoken")
    mixed = _mixed_words(text)
    if mixed > 0.1:
        score += mixed
        why.append(f"{_percent(mixed)} of its words mix letters, digits and signs")
    return min(1.0, score), tuple(why)


def _wordlike(words: Sequence[str]) -> float:
    """The part of the longer words that have vowels, and no five consonants in a row; letters of other scripts pass."""
    long = [word for word in words if len(word) >= 4]
    if not long:
        return 0.5
    spoken = [word for word in long if not word.isascii() and not any("a" <= one <= "z" for one in word)]
    return (sum(map(_is_spoken, long)) + len(spoken)) / len(long) if spoken else sum(map(_is_spoken, long)) / len(long)


def _is_spoken(word: str) -> bool:
    if not any("a" <= one <= "z" for one in word):
        return False  # counted apart
    num_vowels = sum(one in _VOWELS for one in word)
    return 0.2 <= num_vowels / len(word) <= 0.75 and not _CLUSTER.search(word)


def _mixed_words(text: str) -> float:
    """The part of white-space words that hold letters beside digits or odd signs, or capitals inside."""
    words = [word.strip(".,;:!?()[]{}'\"`<>") for word in text.split()]
    words = [word for word in words if len(word) >= 3]
    if not words:
        return 0.0

    def is_mixed(word: str) -> bool:
        has_letter = any(one.isalpha() for one in word)
        has_other = any(not one.isalpha() and one not in "-'_./" for one in word)
        capitals = sum(one.isupper() for one in word[1:])
        return has_letter and (has_other or (capitals >= 1 and not word.isupper()))

    return sum(map(is_mixed, words)) / len(words)


def _is_broken(character: str) -> bool:
    return character == "\ufffd" or (
        unicodedata.category(character) in ("Cc", "Cn", "Co", "Cs") and not character.isspace()
    )


def _share(text: str, has: Callable[[str], bool]) -> float:
    return sum(map(has, text)) / len(text) if text else 0.0


def _percent(share: float) -> str:
    return "none" if math.isnan(share) else f"{share:.0%}"
