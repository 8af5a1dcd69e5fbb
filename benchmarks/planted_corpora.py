"""Corpora for the diagnosis benchmark, from what is on the machine: prose, captions, verse, code,
lists, names, messages, in a dozen languages.

Those of the report half are looked at by nobody while rules are made; once reported, they go to the
tuning half and others take their place.

What is not there (Multi30k and Tiny Shakespeare lie outside of the project, manual pages and
message catalogues belong to the system) is left out, and the benchmark says so.
"""

import contextlib
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
_DOCUMENTS: Final = Path("/usr/share/doc")
_HEADERS: Final = Path("/usr/include")
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
    return Texts([other for _, other in pairs], [english for english, _ in pairs])


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
        for piece in re.split(
            r"\n(?=\s*(?:def|class) )", path.read_text(encoding="utf-8", errors="ignore")
        ):
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


def changelogs() -> Texts:
    """What changed from version to version: lists, names, numbers, abbreviations."""
    return _from_documents("*/changelog.Debian.gz", r"\n\s*[*-] |\n\n")


def _from_documents(pages: str, between: str, folder: Path = _DOCUMENTS) -> Texts:
    """Pieces of files under /usr/share."""
    found: dict[str, None] = {}
    for path in sorted(folder.glob(pages)):
        with contextlib.suppress(OSError, EOFError):
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for piece in re.split(between, raw.decode(errors="ignore")[:200_000]):
                plain = " ".join(piece.split())
                if 30 < len(plain) < 2_000:
                    found[plain] = None
    lines = list(found)
    random.Random(13).shuffle(lines)
    if len(lines) < 2_000:
        raise FileNotFoundError(f"there is hardly anything at {folder}/{pages}")
    return Texts(lines[:_MAX_LINES])


def comments() -> Texts:
    """Comments of C headers: clauses, names of macros and structures, notes on licences."""
    found: dict[str, None] = {}
    for path in sorted(_HEADERS.rglob("*.h")):
        with contextlib.suppress(OSError):
            for piece in re.findall(
                r"/\*(.*?)\*/", path.read_text(encoding="utf-8", errors="ignore"), re.DOTALL
            ):
                plain = " ".join(re.sub(r"\n\s*\*", "\n", piece).strip("*! \n").split())
                if 40 < len(plain) < 2_000:
                    found[plain] = None
    lines = list(found)
    random.Random(17).shuffle(lines)
    if len(lines) < 2_000:
        raise FileNotFoundError(f"there are hardly any headers at {_HEADERS}")
    return Texts(lines[:_MAX_LINES])


def names() -> Texts:
    """Names of languages, countries, provinces and currencies, English to German: short, and often
    the same in both.
    """
    return catalogues("de", of_names=True)


def catalogues(language: str = "fr", *, of_names: bool = False) -> Texts:
    """Messages of programs, English to another language; or names."""
    pairs: dict[str, str] = {}
    for path in sorted((_CATALOGUES / language / "LC_MESSAGES").glob("*.mo")):
        if path.name.startswith("iso_") != of_names or path.name.startswith(("opcodes", "gas")):
            continue  # the last two are names of instructions
        try:
            with path.open("rb") as file:
                # the only way to list one
                catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        except (OSError, UnicodeDecodeError, ValueError):
            continue
        for english, other in catalogue.items():
            if (
                isinstance(english, str)
                and (3 if of_names else 12) < len(english) < 400
                and other
                and (of_names or english != other)
            ):
                pairs[" ".join(english.split())] = " ".join(other.split())
    items = list(pairs.items())
    random.Random(5).shuffle(items)
    if len(items) < 2_000:
        raise FileNotFoundError("there are hardly any message catalogues here")
    items = items[:_MAX_LINES]
    return Texts([other for _, other in items], [english for english, _ in items])


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
    "changelogs": changelogs,
    "names": names,
    "Russian messages": lambda: Texts(catalogues("ru").target),
    "Japanese catalogues": lambda: catalogues("ja"),
    "Portuguese messages": lambda: Texts(catalogues("pt_BR").target),
    "read-me files": lambda: _from_documents("*/README*", r"\n\s*\n"),
    "calls of the system": lambda: manuals("man[27]/*.gz", 2),
    "Polish catalogues": lambda: catalogues("pl"),
    "Vietnamese catalogues": lambda: catalogues("vi"),
    "Italian catalogues": lambda: catalogues("it"),
    "comments": comments,
    "Dutch catalogues": lambda: catalogues("nl"),
    "Turkish messages": lambda: Texts(catalogues("tr").target),
    "Ukrainian catalogues": lambda: catalogues("uk"),
    "licences": lambda: _from_documents("*/copyright", r"\n\s*\.?\n"),
    "Czech catalogues": lambda: catalogues("cs"),
    "Swedish catalogues": lambda: catalogues("sv"),
    "Hungarian catalogues": lambda: catalogues("hu"),
    "Korean messages": lambda: Texts(catalogues("ko").target),
    "functions of libraries": lambda: manuals("man3/*.gz", 3),
    "French manuals": lambda: manuals("fr/man[158]/*.gz", 1),
    "help of a build tool": lambda: _from_documents(
        "cmake-*/Help/*/*.rst", r"\n\s*\n", Path("/usr/share")
    ),
}
"""By name."""

OWN_LANGUAGES: Final[dict[str, str]] = {
    "catalogues": "French",
    **{name: name.split()[0] for name in CORPORA if name.endswith((" catalogues", " messages"))},
}
"""The language of a corpus's targets, where a text in it might be planted as a foreign one."""

NOT_LATIN: Final = ("Russian", "Ukrainian", "Japanese", "Korean")
"""Those in another script: what is foreign there is of another script too."""

TRAININGS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "tune": (
        ("docstrings", 8),
        ("captions", 32),
        ("docstrings", 32),
        ("sentences", 8),
        ("captions", 64),
        ("manuals", 64),
        ("catalogues", 32),
        ("plays", 32),
        ("captions back", 64),
        ("functions", 8),
        ("German manuals", 32),
        ("Spanish catalogues", 8),
        ("changelogs", 32),
        ("names", 32),
        ("Russian messages", 64),
        ("Japanese catalogues", 8),
        ("Portuguese messages", 32),
        ("Polish catalogues", 32),
        ("read-me files", 8),
        ("Vietnamese catalogues", 64),
        ("calls of the system", 64),
        ("Italian catalogues", 8),
        ("comments", 32),
        ("Dutch catalogues", 32),
        ("Turkish messages", 8),
        ("Ukrainian catalogues", 64),
        ("licences", 64),
        ("Czech catalogues", 8),
    ),
    "report": (
        ("Swedish catalogues", 32),
        ("Hungarian catalogues", 8),
        ("Korean messages", 64),
        ("functions of libraries", 32),
        ("French manuals", 64),
        ("help of a build tool", 8),
    ),
}
"""What each half trains on: corpus and rows of a batch."""
