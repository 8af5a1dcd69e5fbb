"""The two corpora of the demo: docstrings of the standard library, and translations into a made-up language.

Docstrings are a real corpus that every machine has, one document per line. The sources are parsed, never imported. The
documents depend only on the Python version: parts that some distributions leave out (tests, Tk, IDLE) are left out here
too, and so are packages installed beside the library. Text that is not prose is removed, as in any corpus: doctests,
tables, rulers. Cost: 3.5 s for 5,000 documents, 1.2 MB (Python 3.11), all of it for parsing the sources.

Velan is a language that exists only here:

    the king loves some new tables beyond a happy child
    belgu mentu nesp le desku nilgon letdon savtar

It puts the place first and the verb last; adjectives follow their noun and agree with it in gender and number; a
preposition follows its noun. So there is something to learn: words, order and agreement. The words are generated from a
fixed seed; the sentences depend on the given seed.
"""

import ast
import functools
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_MIN_CHARACTERS: Final = 40
_MIN_LETTERS: Final = 0.9
"""Minimum share of letters and spaces in prose."""
_NO_PROSE: Final = re.compile(r"([^\w\s])\1{4}|>>>")
_LEFT_OUT: Final = frozenset(
    {"test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip"}
)
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NOUNS: Final = (
    *("dog", "cat", "doctor", "child", "teacher", "farmer", "horse", "bird", "sailor", "king", "queen", "painter"),
    *("house", "boat", "garden", "river", "mountain", "window", "letter", "book", "table", "bridge", "tower", "song"),
)
_ADJECTIVES: Final = ("old", "small", "red", "tired", "happy", "green", "quiet", "strong", "new", "dark")
_VERBS: Final = ("find", "follow", "remember", "paint", "visit", "want", "watch", "clean", "love", "open")
_PLACES: Final = ("near", "behind", "under", "beyond")
_PLURALS: Final = {"child": "children"}
_GENDERS: Final = "ou"
"""Nouns end in one of these, and so do their adjectives."""


def read_docstrings(*, seed: int) -> list[str]:
    """Return the docstrings, each once and on one line, shuffled by the seed."""
    documents = list(dict.fromkeys(_docstrings(Path(sysconfig.get_path("stdlib")))))
    random.Random(seed).shuffle(documents)
    return documents


def _docstrings(library: Path) -> Iterator[str]:
    for path in sorted(library.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(library).parts):
            yield from _docstrings_of(path)


def _docstrings_of(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # a file that this Python cannot parse is not part of its library
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            document = " ".join((ast.get_docstring(node, clean=False) or "").split())
            if len(document) >= _MIN_CHARACTERS and _is_prose(document):
                yield document


def _is_prose(text: str) -> bool:
    num_letters = sum(char.isalpha() or char == " " for char in text)
    return text.isascii() and num_letters >= _MIN_LETTERS * len(text) and not _NO_PROSE.search(text)


def make_pairs(number: int, *, seed: int) -> list[tuple[str, str]]:
    """Return `number` different sentences, each in English and in Velan."""
    rng = random.Random(seed)
    pairs: dict[tuple[str, str], None] = {}
    while len(pairs) < number:
        pairs[_make_pair(rng)] = None
    return list(pairs)


def _make_pair(rng: random.Random) -> tuple[str, str]:
    # Two of the three phrases have an adjective, so that sentences are similar in length, and batches in loss.
    subject, thing, where = (_make_phrase(rng, described) for described in rng.sample((True, True, False), 3))
    verb, place, is_past = rng.choice(_VERBS), rng.choice(_PLACES), rng.random() < 0.5
    inflected = (verb + ("d" if verb.endswith("e") else "ed")) if is_past else verb + "s" * (not subject.is_plural)
    inflected = {"finded": "found", "watchs": "watches"}.get(inflected, inflected)
    ending = ("it" if is_past else "ar") + "en" * subject.is_plural
    return (
        f"{subject.english} {inflected} {thing.english} {place} {where.english}",
        f"{where.velan} {_stems()[place]} {subject.velan} {thing.velan} {_stems()[verb]}{ending}",
    )


class _Phrase(NamedTuple):
    """A noun with its adjective, if it has one, in both languages."""

    english: str
    velan: str
    is_plural: bool


def _make_phrase(rng: random.Random, is_described: bool) -> _Phrase:
    adjectives = [rng.choice(_ADJECTIVES)] if is_described else []
    noun, is_plural, is_definite = rng.choice(_NOUNS), rng.random() < 0.4, rng.random() < 0.5
    english = [*adjectives, _PLURALS.get(noun, f"{noun}s") if is_plural else noun]
    article = "some" if is_plural else "an" if english[0][0] in "aeiou" else "a"
    ending = _GENDERS[_NOUNS.index(noun) % len(_GENDERS)] + "n" * is_plural
    velan = ["le"] * is_definite + [_stems()[word] + ending for word in (noun, *adjectives)]
    return _Phrase(" ".join(["the" if is_definite else article, *english]), " ".join(velan), is_plural)


@functools.cache
def _stems() -> dict[str, str]:
    """Return a unique stem of two syllables for every word."""
    rng = random.Random("velan")
    stems: dict[str, str] = {}
    for word in (*_NOUNS, *_ADJECTIVES, *_VERBS, *_PLACES):
        stem = ""
        while not stem or stem in stems.values():
            stem = rng.choice("bdfgklmnprstv") + rng.choice("aei") + rng.choice("lnrstv") + rng.choice("dgkmpt")
        stems[word] = stem
    return stems
