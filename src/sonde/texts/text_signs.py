"""What is odd about a text: repetition, garbling, a foreign language; plain measures, and what they say against a corpus.

Decisions only: texts and numbers in, a `Reading` out. A reading says which kind of oddity it is, how sure that is (0 to 1), and in words why.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from sonde.spread import Spread
from sonde.texts.corpus_profile import CorpusProfile
from sonde.texts.languages import language_shares, plausible_share, script_shares, words_of

GARBLED_TEXT: Final = "garbled_text"
FOREIGN_LANGUAGE: Final = "foreign_language"
REPETITION: Final = "repetition"
_MAX_PERIOD: Final = 16
"""Tokens of the longest pattern whose repetition is looked for."""
_REPEATED: Final = 0.6
"""A text is repetitive when so much of it repeats what stands a period before,"""
_ODD_Z: Final = 4.0
"""and odd when its characters follow one another so many deviations less predictably than usual."""
_NEW_Z: Final = 2.5
_BROKEN: Final = 0.02
_MANY_UNKNOWN: Final = 0.4
"""A text of which so much less is known than usual is like none of them."""
_FEW_KNOWN: Final = 0.01
"""Known words are few when so small a part of normal texts has fewer."""
_FOREIGN_SHARE: Final = 0.10
"""So many words must be function words of a language, to be sure of it."""
_NO_DOUBT: Final = 0.9
"""A reading this strong needs no alternative."""
_PLAUSIBLE: Final = 0.80
"""Where the letters of shuffled text and of real text part,"""
_PLAUSIBLE_SPAN: Final = 0.10
"""and how far from there it is beyond doubt."""


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
    plausible: float
    """Part of the neighbouring letters that stand side by side in some language; NaN when it has hardly any words."""
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
    otherwise: str = ""
    """What else it may be, when that is not much less likely."""
    is_alien: bool = False
    """Is it like none of the corpus: broken, or hardly a word of it known? Odd corners of a corpus are not."""


def measure_text(text: str, tokens: Sequence[int], profile: CorpusProfile, *, is_own: bool = False) -> TextMeasures:
    """The measures of one text and its tokens; `is_own` when the profile was made with it."""
    text = text.strip("\ufffd")
    return TextMeasures(
        surprise=profile.surprise(text),
        known_words=profile.known_words(text, is_own=is_own),
        letters=_share(text, lambda one: one.isalpha() or one.isspace()),
        broken=_share(text, _is_broken),
        plausible=plausible_share(words_of(text)),
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
    text = text.strip("\ufffd")  # a block may begin or end inside a character
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
    strength = oddity * min(1.0, 0.5 + abs(foreign - garbled))
    is_alien = measures.broken > _BROKEN or not measures.known_words > spread.known_words.median - _MANY_UNKNOWN
    in_doubt = strength < _NO_DOUBT
    if foreign > garbled:
        told = f"it reads as {language}" if language else "it reads as words, but not as those of the corpus"
        evidence, otherwise = (told, *why_foreign, how_odd), GARBLED_TEXT if in_doubt else ""
        return Reading(
            cause=FOREIGN_LANGUAGE, strength=strength, evidence=evidence, otherwise=otherwise, is_alien=is_alien
        )
    evidence, otherwise = (*why_garbled, how_odd), FOREIGN_LANGUAGE if in_doubt else ""
    return Reading(cause=GARBLED_TEXT, strength=strength, evidence=evidence, otherwise=otherwise, is_alien=is_alien)


def is_like_the_source(target: str, own: CorpusProfile, source: CorpusProfile) -> bool:
    """Is a target in the source's language? Its words are those of the sources, and not those of the targets."""
    words = words_of(target)
    if len(words) < 3:
        return False
    in_source, in_own = (
        sum(profile.documents_of_word.get(word, 0) > 1 for word in words) / len(words) for profile in (source, own)
    )
    return in_source > 0.7 and in_source > in_own + 0.4


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
        is_alien=True,
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
    usual = spread.known_words.median
    few_known = below <= _FEW_KNOWN and measures.known_words < usual - 0.15
    is_new = spread.surprise.share_below(measures.surprise) >= 0.99 and z > _NEW_Z
    if measures.broken > _BROKEN:
        return 1.0
    if not is_new and not few_known:
        return 0.0
    if few_known and z > _NEW_Z / 2 and measures.known_words < usual - _MANY_UNKNOWN:
        return 1.0
    odd = (z / _ODD_Z + (1.0 if few_known else 0.0)) / 2
    return max(0.0, min(1.0, odd))


def _foreignness(text: str, measures: TextMeasures, profile: CorpusProfile) -> tuple[float, str, tuple[str, ...]]:
    """How much speaks for another language, which one, and why."""
    scripts = script_shares(text)
    script, share = max(scripts.items(), key=lambda item: item[1], default=("", 0.0))
    if script and profile.scripts.get(script, 0.0) < 0.05 and share > 0.8 and measures.letters > 0.7:
        return 1.0, script.capitalize(), (f"{_percent(share)} of its letters are {script.capitalize()}",)
    best = next((one for one in language_shares(words_of(text)) if one.language != profile.language), None)
    surplus = 0.0 if best is None else max(0.0, best.share - profile.languages.get(best.language, 0.0))
    plausible = 0.0 if math.isnan(measures.plausible) else (measures.plausible - _PLAUSIBLE) / _PLAUSIBLE_SPAN
    score = 0.5 * max(0.0, min(1.0, plausible)) + min(0.6, 2 * surplus)
    why = [f"{_percent(measures.plausible)} of its neighbouring letters stand side by side in some language"]
    if best is None or surplus < _FOREIGN_SHARE:
        return score * measures.letters, "", tuple(why)
    why.insert(0, f"{_percent(best.share)} of its words are little words of {best.language}")
    return score * measures.letters, best.language, tuple(why)


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
    implausible = (_PLAUSIBLE - measures.plausible) / _PLAUSIBLE_SPAN
    if math.isnan(implausible):  # no words in Latin letters: they are in others, or there are none
        implausible = 1.0 if measures.letters < 0.5 else 0.0
    if implausible > 0:
        score += 0.7 * min(1.0, implausible)
        why.append(
            f"only {_percent(measures.plausible)} of its neighbouring letters stand side by side in any language"
        )
    mixed = _mixed_words(text)
    if mixed > 0.1:
        score += mixed
        why.append(f"{_percent(mixed)} of its words mix letters, digits and signs")
    return min(1.0, score), tuple(why)


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
