"""What is odd about a text: repetition, garbling and foreign languages are told apart, and ordinary text is left alone."""

import random

import pytest

from sonde.texts.corpus_profile import CorpusProfile, profile_of
from sonde.texts.text_signs import (
    FOREIGN_LANGUAGE,
    GARBLED_TEXT,
    REPETITION,
    Reading,
    TextSpread,
    is_like_the_source,
    measure_text,
    read_text,
    repeated_share,
    spread_of,
)

_NOUNS = ("file", "list", "value", "string", "object", "module", "number", "error", "parser", "server")
_VERBS = ("returns", "opens", "raises", "creates", "removes", "checks", "writes", "reads")
_ENDS = ("of the given name", "if it is not empty", "for this class", "from the current thread", "and the first item")
FRENCH = "Le petit train de la vallée part chaque matin et ne revient que le soir avec les habitants du village."
RUSSIAN = "Вечером мы сидели на берегу реки и слушали, как ветер шумит в деревьях."


def sentences(seed: int, num: int) -> list[str]:
    generator = random.Random(seed)

    def sentence() -> str:
        noun, verb, other, end = (generator.choice(words) for words in (_NOUNS, _VERBS, _NOUNS, _ENDS))
        return f"The {noun} {verb} a {other} {end}."

    return [" ".join(sentence() for _ in range(3)) for _ in range(num)]


def characters(text: str) -> list[int]:
    return [ord(one) for one in text]


@pytest.fixture(scope="module")
def corpus() -> tuple[CorpusProfile, TextSpread]:
    texts = sentences(1, 200)
    profile = profile_of(texts)
    return profile, spread_of([measure_text(text, characters(text), profile, is_own=True) for text in texts])


def reading(corpus: tuple[CorpusProfile, TextSpread], text: str) -> Reading:
    profile, spread = corpus
    return read_text(text, characters(text), measure_text(text, characters(text), profile), profile, spread)


def test_text_like_the_corpus_reads_as_nothing_odd(corpus: tuple[CorpusProfile, TextSpread]) -> None:
    assert [reading(corpus, text).cause for text in sentences(2, 20)] == [""] * 20


@pytest.mark.parametrize("text", [FRENCH, RUSSIAN], ids=["French", "Russian"])
def test_another_language_is_named(corpus: tuple[CorpusProfile, TextSpread], text: str) -> None:
    found = reading(corpus, text)
    assert found.cause == FOREIGN_LANGUAGE
    assert found.strength > 0.8
    assert ("French" if text == FRENCH else "Cyrillic") in found.evidence[0]


@pytest.mark.parametrize(
    "garble",
    [
        lambda text, generator: "".join(chr(generator.randrange(33, 127)) for _ in text),
        lambda text, generator: "".join(generator.sample(text, len(text))),
        lambda text, generator: generator.randbytes(len(text)).decode("utf-8", "replace"),
    ],
    ids=["noise", "shuffled letters", "bytes"],
)
def test_garbled_text_is_no_language(corpus: tuple[CorpusProfile, TextSpread], garble: object) -> None:
    assert callable(garble)
    generator = random.Random(3)
    found = [reading(corpus, garble(text, generator)).cause for text in sentences(4, 10)]
    assert found == [GARBLED_TEXT] * 10


def test_a_repeated_pattern_is_told_with_its_period(corpus: tuple[CorpusProfile, TextSpread]) -> None:
    found = reading(corpus, "abc" * 30)
    assert found.cause == REPETITION
    assert "a pattern of 3 tokens" in found.evidence[0]


def test_the_repeated_share_finds_the_shortest_period() -> None:
    assert repeated_share([7] * 20) == (1.0, 1)
    assert repeated_share([1, 2, 3, 4] * 6) == (1.0, 4)
    assert repeated_share(list(range(20))) == (0.0, 1)


def test_a_doubtful_reading_says_what_else_it_may_be(corpus: tuple[CorpusProfile, TextSpread]) -> None:
    found = reading(corpus, "xalu tirem posan dulk ferin")
    assert found.cause in (FOREIGN_LANGUAGE, GARBLED_TEXT)
    assert {found.cause, found.otherwise} == {FOREIGN_LANGUAGE, GARBLED_TEXT}


def test_a_target_in_the_language_of_the_sources_is_noticed() -> None:
    english = profile_of(sentences(1, 50))
    french = profile_of([FRENCH] * 50)
    assert is_like_the_source(sentences(2, 1)[0], french, english)
    assert not is_like_the_source(FRENCH, french, english)
    assert not is_like_the_source("x y", french, english)
