"""The two corpora of the demo: docstrings of the standard library, and translations into a made-up
language.

Docstrings are a real corpus that every machine has, one document per line. The sources are parsed,
never imported. The documents depend only on the Python version: parts that some distributions leave
out (tests, Tk, IDLE) are left out here too, and so are packages installed beside the library. Text
that is not prose is removed, as in any corpus: doctests, tables, rulers. Cost: 3.5 s for 5,000
documents, 1.2 MB (Python 3.11), all of it for parsing the sources.

Velan is a language that exists only here:

    the dark king cleaned the new rivers beyond the strong cats
    cekon sklumbon diyumg pomb gelp lofilon miwon criemig

It puts the place first and the verb last; a preposition follows its noun, and so does an adjective,
which agrees with it in number. So there is something to learn: words, order and agreement. The
letters are English ones in disguise; which sentences are made depends on the seed.
"""

import ast
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MIN_CHARACTERS: Final = 40
_MIN_LETTERS: Final = 0.9
"""Minimum share of letters and spaces in prose."""
_NO_PROSE: Final = re.compile(r"([^\w\s])\1{4}|>>>")
_LEFT_OUT: Final = frozenset(
    {
        "test",
        "tests",
        "site-packages",
        "dist-packages",
        "idlelib",
        "tkinter",
        "turtledemo",
        "lib2to3",
        "ensurepip",
    }
)
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NOUNS: Final = (
    *(
        "dog",
        "cat",
        "doctor",
        "girl",
        "teacher",
        "farmer",
        "horse",
        "bird",
        "sailor",
        "king",
        "queen",
        "painter",
    ),
    *(
        "house",
        "boat",
        "garden",
        "river",
        "mountain",
        "window",
        "letter",
        "book",
        "table",
        "bridge",
        "tower",
        "song",
    ),
)
_ADJECTIVES: Final = (
    "old",
    "small",
    "red",
    "tired",
    "happy",
    "green",
    "quiet",
    "strong",
    "new",
    "dark",
)
_VERBS: Final = (
    "found",
    "followed",
    "painted",
    "visited",
    "wanted",
    "saw",
    "cleaned",
    "loved",
    "opened",
    "watched",
)
_PLACES: Final = ("near", "behind", "under", "beyond")
_VELAN: Final = str.maketrans("aeioubdgptklrmnfv", "eiouadgbtkprlnmvf")


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
    phrases = [_make_phrase(rng) for _ in range(3)]
    (subject, thing, where), (velan_subject, velan_thing, velan_where) = zip(*phrases, strict=True)
    verb = rng.choice(_VERBS)
    place = rng.choice(_PLACES)
    velan = (
        f"{velan_where} {place.translate(_VELAN)} {velan_subject} {velan_thing}"
        f" {verb.translate(_VELAN)}"
    )
    return f"{subject} {verb} {thing} {place} {where}", velan


def _make_phrase(rng: random.Random) -> tuple[str, str]:
    """Return a noun and its adjective in English and in Velan."""
    noun = rng.choice(_NOUNS)
    adjective = rng.choice(_ADJECTIVES)
    is_plural = rng.random() < 0.4
    ending = "on" * is_plural
    velan = f"{noun.translate(_VELAN)}{ending} {adjective.translate(_VELAN)}{ending}"
    return f"the {adjective} {noun}{'s' * is_plural}", velan
