"""Corpora for the diagnosis benchmark, from what is on the machine: the rules were developed on the first five, and never on the others.

What is not there (Multi30k and Tiny Shakespeare lie outside of the project, manual pages and message catalogues belong to the system) is left out, and
the benchmark says so.
"""

import gettext
import gzip
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.planted_tasks import translated_sentences

from sonde.demo.corpus import read_docstrings

SHARED: Final = Path("/work/shared/data")
_MANUALS: Final = Path("/usr/share/man")
_CATALOGUES: Final = Path("/usr/share/locale")
_MACRO: Final = re.compile(r"\\f.|\\-|\\&|\\\*\S|\\[a-z(]\S{0,2}")
_MAX_LINES: Final = 9_000


class Texts(NamedTuple):
    """A corpus: one side, or two of the same length."""

    target: list[str]
    source: list[str] | None = None


def docstrings() -> Texts:
    """Docstrings of Python's library."""
    return Texts(read_docstrings(seed=7))


def sentences() -> Texts:
    """English to German by rule."""
    pairs = translated_sentences(_MAX_LINES, seed=7)
    return Texts([other for _, other in pairs], [one for one, _ in pairs])


def captions() -> Texts:
    """Multi30k, English to German."""
    return Texts(_captions("de"), _captions("en"))


def plays() -> Texts:
    """Tiny Shakespeare, a speech a line."""
    text = (SHARED / "tinyshakespeare.txt").read_text(encoding="utf-8")
    return Texts([" ".join(speech.split()) for speech in text.split("\n\n") if speech.strip()])


def functions() -> Texts:
    """Functions of Python's library, a line each: code is what is usual here."""
    found: dict[str, None] = {}
    for path in sorted(Path(random.__file__).parent.glob("*.py")):
        for piece in re.split(r"\n(?=\s*(?:def|class) )", path.read_text(encoding="utf-8", errors="ignore")):
            plain = " ".join(re.sub(r'"""(?:.|\n)*?"""', "", piece).split())
            if 60 < len(plain) < 2_000:
                found[plain] = None
    lines = list(found)
    random.Random(11).shuffle(lines)
    return Texts(lines[:_MAX_LINES])


def manuals(pages: str = "man1/*.gz", every: int = 6) -> Texts:
    """Paragraphs of manual pages, without their macros."""
    found: dict[str, None] = {}
    for path in sorted(_MANUALS.glob(pages))[::every][:900]:
        try:
            text = gzip.decompress(path.read_bytes()).decode(errors="ignore")
        except (OSError, EOFError):
            continue
        for paragraph in re.split(r"\n\.\S*.*\n", text):
            plain = " ".join(_MACRO.sub("", paragraph).split())
            if len(plain) > 60 and not plain.startswith((".", "'")):
                found[plain] = None
    lines = list(found)
    random.Random(3).shuffle(lines)
    if len(lines) < 2_000:
        raise FileNotFoundError("there are hardly any manual pages here")
    return Texts(lines[:_MAX_LINES])


def captions_back() -> Texts:
    """Multi30k the other way, German to English."""
    return Texts(_captions("en"), _captions("de"))


def catalogues(language: str = "fr") -> Texts:
    """Messages of programs, English to French."""
    pairs: dict[str, str] = {}
    for path in sorted((_CATALOGUES / language / "LC_MESSAGES").glob("*.mo")):
        if path.name.startswith(("iso_", "opcodes", "gas")):
            continue  # names of countries and of instructions
        try:
            with path.open("rb") as file:
                catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]  # the only way to list one
        except (OSError, UnicodeDecodeError, ValueError):
            continue
        for one, other in catalogue.items():
            if isinstance(one, str) and 12 < len(one) < 400 and other and one != other:
                pairs[" ".join(one.split())] = " ".join(other.split())
    items = list(pairs.items())
    random.Random(5).shuffle(items)
    if len(items) < 2_000:
        raise FileNotFoundError("there are hardly any message catalogues here")
    items = items[:_MAX_LINES]
    return Texts([other for _, other in items], [one for one, _ in items])


def _captions(language: str) -> list[str]:
    path = SHARED / "multi30k" / f"train.{language}.gz"
    return gzip.decompress(path.read_bytes()).decode().splitlines()[:_MAX_LINES]


CORPORA: Final[dict[str, Callable[[], Texts]]] = {
    "docstrings": docstrings,
    "sentences": sentences,
    "captions": captions,
    "manuals": manuals,
    "catalogues": catalogues,
    "plays": plays,
    "captions back": captions_back,
    "functions": functions,
    "German manuals": lambda: manuals("de/man[158]/*.gz", 1),
    "Spanish catalogues": lambda: catalogues("es"),
}
"""By name."""

TRAININGS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "tune": (
        ("docstrings", 8),
        ("captions", 32),
        ("docstrings", 32),
        ("sentences", 8),
        ("captions", 64),
        ("manuals", 64),
        ("catalogues", 32),
    ),
    "report": (
        ("plays", 32),
        ("captions back", 64),
        ("functions", 8),
        ("German manuals", 32),
        ("Spanish catalogues", 8),
    ),
}
"""What each half trains on: corpus and rows of a batch."""
