"""What is unusual about a text compared with its corpus: garbled, mis-decoded, foreign, not prose;
each as a `Sign` with evidence.

A sign needs two things: the text has it plainly (a floor), and texts of the corpus do not (their
tail). Markup is therefore no sign in a corpus of markup, and a text in one of the corpus's own
languages is foreign only if the corpus knows hardly any of its words. Cheap statistics screen all
texts at once; only flagged texts get a closer look. A strength of 0.5 or more is worth showing by
itself; weaker signs count when many texts have them.
"""

import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.texts import measures
from sonde.texts.densities import (
    DENSITIES,
    Density,
    misdecoded_share,
    quoted_share,
    repeated_share,
)
from sonde.texts.languages import identify, language_name, margin, plausible_share, words_of
from sonde.texts.profile import CorpusProfile, Measured

GARBLED_TEXT: Final = "garbled_text"
MIS_DECODED: Final = "mis_decoded"
OTHER_SCRIPT: Final = "other_script"
FOREIGN_LANGUAGE: Final = "foreign_language"
MARKUP: Final = "markup"
CODE: Final = "code"
TABLE: Final = "table"
LOG: Final = "log"
SHOUTING: Final = "shouting"
REPETITION: Final = "repetition"
CONTROL_CHARACTERS: Final = "control_characters"
EMPTY: Final = "empty"
OVER_LONG: Final = "over_long"
KINDS: Final = (
    *(
        EMPTY,
        CONTROL_CHARACTERS,
        MIS_DECODED,
        OTHER_SCRIPT,
        REPETITION,
        LOG,
        MARKUP,
        CODE,
        TABLE,
        SHOUTING,
    ),
    *(FOREIGN_LANGUAGE, GARBLED_TEXT, OVER_LONG),
)
"""Every kind of sign that a single text can have. Of equally strong signs, the earlier one explains
the later.
"""
CLEAR: Final = 0.5
"""A sign at least this strong is worth showing by itself."""

NO_PROSE: Final = (LOG, MARKUP, CODE, TABLE)
EXPLAINS: Final = frozenset({EMPTY, MIS_DECODED, OTHER_SCRIPT, REPETITION, *NO_PROSE})
"""Kinds that explain why a text looks garbled or foreign although it is not."""
_BROKEN: Final = 0.15
"""A text with a larger fraction of broken and control characters is not read as text."""
_ODD: Final = 0.5
"""Below this oddness, the language of a text is not checked."""
_ODDEST: Final = 2.0
"""From this oddness on, a text needs fluent letters to pass when its own language is not clearly
recognized.
"""
_OWN_WORDS: Final = 0.6
"""A text with this fraction of the usual share of common words is in the corpus's language."""
_READABLE: Final = 0.5
"""A text reads as a language when some language is at least this likely."""
_PLAUSIBLE: Final = 0.72
"""A text with a smaller fraction of plausible letter bigrams is noise, and not code either."""
_FLUENT: Final = 0.8
"""Names and technical terms reach this fraction of plausible bigrams without being in any
language.
"""
_OWN_LEAD: Final = -0.75
"""A text is in one of the corpus's languages when its `margin` is below this."""
_MAX_PLAUSIBLE: Final = 2000
_MANY_DIGITS: Final = 0.15
"""No language has a larger fraction of digits."""
_MISREAD_SHARE: Final = 0.5
"""At least this fraction of the non-ASCII characters must look like wrongly decoded UTF-8."""
_LEAST_QUOTED: Final = 3
"""Fewer characters in quoted-printable may be anything."""
_LEAST_WORDS: Final = 6
"""In a text of fewer words, unknown ones are no sign by themselves."""
_MANY_WORDS: Final = 12
"""From this many words on, their sign counts in full."""
_LEAST_VOCABULARY: Final = 500
"""A corpus of fewer words does not know the words of its own language."""
_FEW_KNOWN: Final = 0.6
"""Few words are known, and few are common, when their shares are below this fraction of the usual
ones.
"""
_MOSTLY_KNOWN: Final = 0.5
"""A text with this fraction of the usual share of known words is not garbled, unless its letters
are.
"""
_LETTERS_A_WORD: Final = 3
"""Texts with fewer letters a word have no words: every corpus knows the single letters of noise."""
_SHORT: Final = 40
"""In a text of at most this many characters, a single sign may be a tag that covers it."""
_USUAL: Final = 0.01
"""Control characters are normal for the corpus when more than this fraction of its texts has
them.
"""
_MAX_READ: Final = 20_000
"""The number of characters of a text that are examined closely."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that is unusual about a text."""

    kind: str
    """One of KINDS or `pairs.PAIR_KINDS`."""
    strength: float
    """How clear the sign is, from 0 to 1."""
    evidence: tuple[str, ...] = ()
    """Sentences that explain the sign."""
    of_source: bool = False
    """Whether the sign is about the source of a pair."""


def find_signs(
    text: str, profile: CorpusProfile, tokens: Sequence[int] | None = None
) -> list[Sign]:
    """Return the signs of one text, strongest first. `tokens`, if given, also reveal repetition
    that the words do not show.
    """
    return find_signs_of_all([text], profile, tokens=None if tokens is None else [tokens])[0]


def find_signs_of_all(
    texts: Sequence[str], profile: CorpusProfile, *, tokens: Sequence[Sequence[int]] | None = None
) -> list[list[Sign]]:
    """Return the signs of each text, strongest first."""
    # A block of tokens may begin or end inside a character.
    stripped = [text if text.isascii() else text.strip("\ufffd") for text in texts]
    # The rest of a text is read as it looks.
    shown = [measures.visible(text) for text in stripped]
    measured = profile.measure(shown)
    found: list[list[Sign]] = [[] for _ in texts]
    flagged = _screen(measured, profile)
    for number in range(len(texts)) if tokens is not None else np.flatnonzero(flagged).tolist():
        is_shown = len(shown[number]) == len(stripped[number])
        # Otherwise the tokens repeat what nobody sees.
        of_text = tokens[number] if tokens is not None and is_shown else None
        reader = _Reader(shown[number], measured, number, profile, of_text)
        if flagged[number]:
            found[number] = reader.signs()
        else:
            found[number] = _ranked([reader.repetition()])
    for number, text in enumerate(stripped):
        if len(shown[number]) != len(text):
            found[number] = _ranked([_invisible(text, profile), *found[number]])
    return found


def has_clear(found: Sequence[Sign], kinds: Collection[str]) -> bool:
    """Return whether one of the signs is clear and of one of these kinds."""
    return any(sign.kind in kinds and sign.strength >= CLEAR for sign in found)


def _ranked(found: Sequence[Sign | None]) -> list[Sign]:
    """Return signs strongest first."""
    signs = [sign for sign in found if sign is not None]
    return sorted(signs, key=lambda sign: (-sign.strength, KINDS.index(sign.kind)))


def _invisible(text: str, profile: CorpusProfile) -> Sign | None:
    """Report format characters, which nobody sees and a model reads."""
    found = measures.invisible(text)
    if not found or profile.format_share > _USUAL:
        return None
    [(commonest, _)] = Counter(found).most_common(1)
    sentence = (
        f"{len(found)} of its {len(text)} characters are invisible, such as"
        f" U+{ord(commonest):04X} ({unicodedata.name(commonest, 'a format character').lower()})"
    )
    # A soft hyphen or a mark at the beginning of a file is not worth showing.
    strength = min(1.0, 0.3 + 10 * len(found) / len(text))
    return Sign(CONTROL_CHARACTERS, strength, (sentence,))


def _screen(measured: Measured, profile: CorpusProfile) -> NDArray[np.bool_]:
    """Return which texts need a closer look."""
    usual = profile.usual
    columns = measured.columns

    def beyond(name: str, least: float, tails: float) -> NDArray[np.bool_]:
        return np.asarray(usual[name].above(columns[name], least) > tails)

    flagged = columns["odd"] >= _ODD
    flagged |= usual["distinct"].below(columns["distinct"], 0.1) > 1.0
    flagged |= beyond("capitals", 0.05, 1.0) | beyond("length", 0.5, 1.0)
    flagged |= beyond("symbols", 0.01, 0.5) | beyond("digits", 0.02, 0.5)
    flagged |= (columns["foreign_letters"] > 0.05) | beyond("minor_letters", 0.1, 0.5)
    flagged |= columns["mis_decoded"] > 0
    flagged |= measured.counts[:, [measures.CONTROL, measures.BROKEN]].sum(1) > 0
    few = measured.counts[:, [measures.LOWER, measures.UPPER, measures.DIGIT]].sum(1) == 0
    return np.asarray(flagged | few | (measured.num_words < measured.num_characters / 25))


class _Reader:
    """Examines one text closely."""

    def __init__(
        self,
        text: str,
        measured: Measured,
        number: int,
        profile: CorpusProfile,
        tokens: Sequence[int] | None,
    ) -> None:
        self.text = text[:_MAX_READ]
        self.profile = profile
        self.tokens = tokens
        self._is_gibberish = False
        self.counts: list[float] = measured.counts[number].tolist()
        self.num_letters = self.counts[measures.LOWER] + self.counts[measures.UPPER]
        self.num_broken = self.counts[measures.BROKEN] + self.counts[measures.CONTROL]
        self.num_characters = float(measured.num_characters[number])
        self.num_words = float(measured.num_words[number])
        self.values = {name: column.item(number) for name, column in measured.columns.items()}

    def signs(self) -> list[Sign]:
        """Return all signs, strongest first."""
        broken = self.num_broken / max(self.num_characters, 1)
        if broken > _BROKEN:
            sentence = (
                f"{broken:.0%} of its characters are none: broken bytes or control characters"
            )
            return [Sign(GARBLED_TEXT, 1.0, (sentence,))]
        first = [self._empty(), self._over_long(), self._mis_decoded() or self._control()]
        first += [self._other_script(), self.repetition(), self._shouting()]
        found = [sign for sign in first if sign is not None]
        language = None if has_clear(found, EXPLAINS) else self._language()
        most_dense = max(self._above("symbols", 0.01), self._above("digits", 0.02))
        if self.values["odd"] >= 1 or most_dense > 0:
            found += self._densities()
        if has_clear(found, NO_PROSE):  # these use Latin letters in any corpus
            found = [sign for sign in found if sign.kind != OTHER_SCRIPT]
        if language is not None and not has_clear(found, EXPLAINS):
            found.append(language)
        return _ranked(found)

    def _above(self, name: str, least: float) -> float:
        return self.profile.usual[name].above(self.values[name], least)

    def _empty(self) -> Sign | None:
        if self.num_letters or self.counts[measures.DIGIT] or self.num_broken:
            return None
        return Sign(EMPTY, 0.95, ("it holds no letter and no digit",))

    def _over_long(self) -> Sign | None:
        usual = self.profile.usual["length"]
        times = np.exp(self.values["length"] - usual.high)
        spread = np.exp(usual.high - usual.median)
        if times < 8 or times < 2 * spread:
            return None
        sentence = (
            f"{self.num_characters:,.0f} characters; 95 % of texts have fewer than"
            f" {np.expm1(usual.high):,.0f}"
        )
        return Sign(OVER_LONG, float(min(1.0, times / (8 * max(spread, 2)) + 0.3)), (sentence,))

    def _control(self) -> Sign | None:
        num = self.counts[measures.CONTROL]
        if not num or self.profile.control_share > _USUAL:
            return None
        sentence = f"{num:.0f} of its {self.num_characters:.0f} characters are control characters"
        return Sign(CONTROL_CHARACTERS, min(1.0, 0.6 + 20 * num / self.num_characters), (sentence,))

    def _mis_decoded(self) -> Sign | None:
        broken = self.counts[measures.BROKEN] / max(self.num_characters, 1)
        if broken:
            sentence = (
                f"{self.counts[measures.BROKEN]:.0f} of its {self.num_characters:.0f} characters"
                " could not be decoded"
            )
            return Sign(MIS_DECODED, min(1.0, 0.55 + 20 * broken), (sentence,))
        quoted = self._quoted()
        if quoted is not None or self.text.isascii():
            return quoted
        num, share, example = misdecoded_share(self.text)
        usual = self.profile.usual["mis_decoded"]
        num_others = sum(letter > "\x7f" for letter in self.text)
        # Arbitrary bytes shown as letters look like UTF-8 in places; wrongly decoded text does
        # throughout.
        if (
            not num
            or usual.above(share, 0.002) < 1
            or share * len(self.text) < _MISREAD_SHARE * num_others
        ):
            return None
        sentence = f"{num} letters read as UTF-8 taken for another encoding, such as {example!r}"
        return Sign(MIS_DECODED, min(1.0, (0.4 if num == 1 else 0.55) + 10 * share), (sentence,))

    def _quoted(self) -> Sign | None:
        """Report text that was left in quoted-printable."""
        num, share, example = quoted_share(self.text)
        if num < _LEAST_QUOTED or self.profile.usual["quoted"].above(share, 0.01) < 1:
            return None
        sentence = f"{num} characters are left in quoted-printable, such as {example!r}"
        return Sign(MIS_DECODED, min(1.0, 0.4 + 8 * share), (sentence,))

    def _other_script(self) -> Sign | None:
        scripts = self.profile.scripts
        share = self.values["foreign_letters"]
        excess = self._above("minor_letters", 0.1)
        if share < 0.15 and self.values["minor_letters"] > 0.8 and excess > 1:
            scripts = self.profile.main_script
            share = self.values["minor_letters"] * min(1.0, 0.4 + 0.2 * excess)
        if share < 0.15 or self.num_letters < 4:
            return None
        if plausible_share(words_of(self.text[:_MAX_PLAUSIBLE])) < _PLAUSIBLE:
            return None  # noise is noise in any script; `_language` reports it
        found = Counter(measures.scripts_of(measures.codes_of(self.text)).tolist())
        foreign = {
            number: count for number, count in found.items() if number and number not in scripts
        }
        name = measures.SCRIPTS[max(foreign, key=foreign.__getitem__)] if foreign else "another"
        guesses = identify(self.text)
        sentences = [
            (
                f"{sum(foreign.values()) / max(self.num_letters, 1):.0%} of its letters are {name}"
                " script"
            )
        ]
        if guesses and guesses[0].probability > 0.5:
            sentences.append(f"it reads as {language_name(guesses[0].language)}")
        return Sign(OTHER_SCRIPT, min(1.0, 0.3 + share), tuple(sentences))

    def repetition(self) -> Sign | None:
        """Report text that repeats itself."""
        sequences: list[Sequence[object]] = [] if self.tokens is None else [self.tokens]
        words = self.text.split()
        if self.values["distinct"] < 0.8 or self.num_words < 4:
            sequences += [words, self.text] if len(words) < 6 or self.num_words < 6 else [words]
        best = max((repeated_share(part) for part in sequences if len(part) >= 6), default=None)
        if best is None or best.share < 0.45:
            return None
        usual = self.profile.usual["repeated"]
        excess = usual.above(best.share, 0.1)
        if excess < 1:
            return None
        sentence = (
            f"a pattern of {best.period} repeats itself: {best.share:.0%} of the text stands there"
            " a period before"
        )
        return Sign(REPETITION, min(1.0, best.share + 0.1, 0.3 + 0.2 * excess), (sentence,))

    def _shouting(self) -> Sign | None:
        share = self.counts[measures.UPPER] / max(self.num_letters, 1)
        excess = self._above("capitals", 0.05)
        if share < 0.6 or self.num_words < 3 or excess < 1:
            return None
        if plausible_share(words_of(self.text[:_MAX_PLAUSIBLE].lower())) < _PLAUSIBLE:
            return None  # noise in capitals is still noise
        usual = self.profile.usual["capitals"].median
        sentence = f"{share:.0%} of its letters are capitals (corpus median {usual:.0%})"
        return Sign(SHOUTING, min(1.0, 0.1 + share), (sentence,))

    def _densities(self) -> list[Sign]:
        """Report what the text is instead of prose: the first clear kind, or all weak ones."""
        found: list[Sign] = []
        for density in DENSITIES:
            is_noise = self._is_gibberish and density.kind in (CODE, TABLE)
            sign = self._density(density) if self._may_be(density) and not is_noise else None
            if sign is not None and sign.strength >= CLEAR:
                return [sign]
            if sign is not None:
                found.append(sign)
        return found

    def _may_be(self, density: Density) -> bool:
        """Return whether there are enough symbols and digits for `density` to be reported,
        because searching for the marks takes far longer.
        """
        symbols = self.counts[measures.SYMBOL]
        digits = self.counts[measures.DIGIT]
        count = self.text.count
        if density.kind == MARKUP:
            return symbols + count("''") > (self.num_characters > _SHORT)
        if density.kind == GARBLED_TEXT:
            return digits > 2
        least = max(density.floor / 2 * (self.num_words + 4), 2)
        if density.kind == TABLE:  # every mark contains one of these
            return symbols + digits + count(",") + count(";") + count("\t") >= max(least, 5)
        if density.kind == LOG:
            return digits > 1 and digits + symbols >= least
        return symbols + count("(") + count(";") >= max(least / 3, 2)

    def _density(self, density: Density) -> Sign | None:
        found = density.find(self.text)
        excess = self.profile.usual[density.kind].above(found.share, density.least)
        if found.share < density.floor / 2 or excess < 1:
            return None
        sentence = (
            f"{found.num} marks of {density.title}, such as {found.example!r}; {found.share:.0%}"
            " of it"
        )
        # One mark that covers much of a text counts as much as several.
        enough = max(found.num / density.least_num, 0.5 * found.share / density.floor)
        clearest = min(1.0, 0.3 + 0.2 * excess, CLEAR * enough)
        return Sign(density.kind, min(clearest, CLEAR * found.share / density.floor), (sentence,))

    def _language(self) -> Sign | None:
        """Report text in a foreign language or in none."""
        odd = self.values["odd"]
        if self.num_words < 2 or odd < _ODD:
            return None
        plausible = plausible_share(words_of(self.text[:_MAX_PLAUSIBLE]))
        least_common = _OWN_WORDS * self.profile.usual["common_words"].median
        if plausible > _FLUENT and self.values["common_words"] > least_common:
            return None  # decided without identifying the language, which is the slowest step
        guesses = identify(self.text)
        lead = margin(guesses, self.profile.languages)
        if self.counts[measures.DIGIT] > _MANY_DIGITS * self.num_characters:
            lead = min(lead, 0.0)  # no language has that many digits
        is_recognized = bool(guesses) and guesses[0].probability >= _READABLE
        is_readable = is_recognized and not plausible < _PLAUSIBLE
        if lead >= 1 and is_readable:
            return self._foreign_language(guesses[0].language, lead)
        # Text that reads as a language is new, not garbled; the corpus's own language takes
        # precedence.
        is_own = lead < _OWN_LEAD
        if odd < _ODDEST or not plausible < _FLUENT:
            is_own = lead < _OWN_LEAD / 2
        if is_own or plausible > _FLUENT or is_readable:
            return self._unknown_words()
        return self._garbled(plausible)

    def _foreign_language(self, language: str, lead: float) -> Sign:
        """Report text in a language whose lead over those of the corpus is known."""
        own = " or ".join(map(language_name, self.profile.languages[:3]))
        sentence = f"it reads as {language_name(language)}, not as {own}"
        strength = min(1.0, 0.3 + 0.17 * lead)
        strength *= min(1.0, 0.4 + self.values["odd"] / 2)
        strength *= min(1.0, 0.4 + self.num_words / 8)
        return Sign(FOREIGN_LANGUAGE, strength, (sentence, self._how_odd()))

    def _how_odd(self) -> str:
        usual = self.profile.usual
        return (
            f"{self.values['surprise']:.1f} bits per character (corpus median"
            f" {usual['surprise'].median:.1f}); {self.values['known_words']:.0%} of its words are"
            f" in the corpus (median {usual['known_words'].median:.0%})"
        )

    def _garbled(self, plausible: float) -> Sign | None:
        """Report text in no language, given its fraction of plausible letter bigrams."""
        sentence = "it reads like no known language"
        if plausible < _PLAUSIBLE:
            sentence += f": only {plausible:.0%} of its letter pairs occur in any"
            self._is_gibberish = self._above("surprise", 0.2) > 1
        else:
            usual = self.profile.usual["known_words"].median
            are_words = self.num_letters >= _LETTERS_A_WORD * self.num_words
            if are_words and self.values["known_words"] > _MOSTLY_KNOWN * usual:
                return None  # words of the corpus among something else: a list, a template
        strength = min(1.0, 0.2 + 0.2 * self.values["odd"])
        if strength < 0.3:
            return None
        return Sign(GARBLED_TEXT, strength, (sentence, self._how_odd()))

    def _unknown_words(self) -> Sign | None:
        """Report fluent text with few words of the corpus: another spelling, invented words, lists
        of rare ones.
        """
        usual = self.profile.usual["known_words"]
        known = self.values["known_words"]
        if self.num_words < _LEAST_WORDS or len(self.profile.vocabulary) < _LEAST_VOCABULARY:
            return None
        if usual.below(known, 0.05) < 1:
            return None
        shares = [
            self.values[name] / max(self.profile.usual[name].median, 1e-9)
            for name in ("known_words", "common_words")
        ]
        if max(shares) > _FEW_KNOWN:
            return None
        sentence = (
            f"{known:.0%} of its words are in the corpus; of 95 % of texts at least"
            f" {usual.low:.0%} are"
        )
        # Names and abbreviations stand among common words, except in short texts.
        strength = min(1.0, 1.15 - max(shares)) * min(1.0, self.num_words / _MANY_WORDS)
        return Sign(FOREIGN_LANGUAGE, strength, (sentence,))
