"""How much of a text is markup, code, table or log, measured by characteristic patterns; how much
is mojibake; how much repeats itself.

A regular expression finds the marks of each kind. The share is either the fraction of characters
that the marks cover or the number of marks per word. Which share is unusual depends on the corpus:
see `signs`.
"""

import operator
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

_TAGS: Final = re.compile(
    r"</?[a-zA-Z][\w:-]*(?:\s[^<>]{0,300})?/?(?:>|(?<=[\"'])\s*$)|<[a-zA-Z]\w*\s+[a-zA-Z-]+(?:=[^<>]{0,80})?$|<!--|-->|<!\w+|&#?\w{2,8};|\{\{[^{}]{1,80}\}\}|\[\[[^\[\]]{1,80}\]\]|"
    r"\]\(\w[^()\s]{3,200}\)|\\[a-zA-Z]{3,}\b\*?(?:\{[^{}]{0,60}\})?|'''?|={2,}|\*\*\w|^#{1,6}\s|\[/?[a-z]{1,8}(?:=[^\]]{0,80})?\]",
    re.MULTILINE,
)
_CODE: Final = re.compile(
    r"\b(?:def|return|import|elif|lambda|function|const|void|static|public|private|struct|enum|typedef|printf|println|"
    r"async|await|null|NULL|nullptr|SELECT|FROM|WHERE|INSERT|INTO|VALUES|UPDATE|endif|fi|esac|echo|self|var|let|int|bool|char|str|len|range)\b(?=\s*[\w(.:;={*&\[<'\"]|$)|"
    r"[=!<>+*/|&-]=|=>|->|::|&&|\|\||\+\+|//\s|/\*|\*/|#include|#define|\w\(\)|\w\(\w*[,)=\[('\"]|\)\s*[{;:]|[;{}]\s*$|[;{}](?=\s)|\w\[\w*\]|"
    r"\b[a-z]+_[a-z_]+\b|\b[a-z]+[A-Z]\w+\b|\$\{?\w+|\w\.\w+\(|\s=\s|--\w+|\"\w+\"\s*:|\bfor \w+ in"
    r" \w|\bif (?:not )?\w+ is\b|[=(]\s*\[|'\)",
    re.MULTILINE,
)
_CELLS: Final = re.compile(
    r"\t|\s?\|\s?|(?<=[\w\"'])[,;](?=[\w\"'-])|(?<![\w.:/-])[-+]?\d[\d.,]*%?(?![\w:/]|-\d)"
)
_LOG: Final = re.compile(
    r"\b\d{1,4}[-/]\d{1,2}[-/]\d{1,4}(?:T|\b)|\b\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?|\b(?:INFO|WARN|WARNING|ERROR|DEBUG|TRACE|FATAL|CRITICAL|NOTICE)\b|"
    r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b0x[0-9a-fA-F]{4,}\b|\w\[\d{1,6}\]|\bpid["
    r" =]\d+|\b\w+=\S+|\b(?:GET|POST|PUT|DELETE|HEAD) /|\bat [\w.$]+\([\w.:]+\)|"
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-|\bline \d+, in\b|\bTraceback\b"
)
_QUOTED: Final = re.compile(r"(?:=[0-9A-F]{2})+")
_NOT_A_NUMBER: Final = re.compile(r"=(?:[A-F][0-9A-F]|[0-9][A-F])")
"""Of the marks of quoted-printable, those that no setting such as `width=80` has."""
_MIXED: Final = re.compile(r"\b(?=\w*\d)(?=\w*[a-z])\w{4,}\b", re.IGNORECASE)
_MISREAD: Final = re.compile(
    "[\u00c2-\u00df][\u0080-\u00bf]|[\u00e0-\u00ef][\u0080-\u00bf]{2}|[\u00f0-\u00f4][\u0080-\u00bf]{3}|"
    "[РС][\u0402\u0403\u0409\u040a-\u040f\u0452-\u045f\u0490\u0491°±µ¶·№»ЎўЈ¤¦§©«¬®Ії]"
)
_WINDOWS: Final = {
    ord(bytes([code]).decode("cp1252")): code
    for code in range(0x80, 0xA0)
    if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}
_MAX_ITEMS: Final = 5_000
_RUN: Final = 3
_LEAST_TIMES: Final = 1.5
"""Saying something twice is not repetition yet: this many more periods must follow the first."""


class Marks(NamedTuple):
    """The marks of one kind found in a text."""

    num: int
    share: float
    example: str


class Density(NamedTuple):
    """One kind of text that is not prose, and how to recognize it."""

    kind: str
    """The kind of sign, one of `signs.KINDS`."""
    title: str
    """The name used in evidence sentences."""
    pattern: re.Pattern[str]
    """A pattern that matches the marks."""
    per_word: bool
    """Whether the share is marks per word. Otherwise it is the fraction of characters that the
    marks cover.
    """
    floor: float
    """A smaller share is not a clear sign."""
    least: float
    """The minimum tail length, used when the corpus's own tail is shorter."""
    least_num: int
    """Fewer marks are not a clear sign."""

    def find(self, text: str) -> Marks:
        """Find the marks of this kind in `text`."""
        found = [match[0] for match in self.pattern.finditer(text)]
        if not found:
            return Marks(0, 0.0, "")
        num_words = max(len(text.split()), len(text) / 8)  # some scripts have no spaces
        if self.per_word:
            share = len(found) / (num_words + 4)
        else:
            share = sum(map(len, found)) / (len(text) + 20)
        return Marks(len(found), min(share, 1.0), max(found[:50], key=len).strip())


DENSITIES: Final = (
    Density("markup", "markup", _TAGS, False, 0.12, 0.04, 2),
    Density("log", "logs", _LOG, True, 0.15, 0.04, 2),
    Density("code", "code", _CODE, True, 0.20, 0.05, 3),
    Density("table", "tables", _CELLS, True, 0.45, 0.10, 5),
    Density("garbled_text", "noise: letters and digits mixed", _MIXED, True, 0.30, 0.05, 3),
)
"""In order of precedence: the first kind that matches clearly explains the text."""


def misdecoded_share(text: str) -> tuple[int, float, str]:
    """Return the count, the share and an example of sequences that look like UTF-8 decoded as
    Latin-1, Windows-1252 or Windows-1251.
    """
    found = [match.span() for match in _MISREAD.finditer(text.translate(_WINDOWS))]
    if not found:
        return 0, 0.0, ""
    return len(found), sum(end - start for start, end in found) / len(text), text[slice(*found[0])]


def quoted_share(text: str) -> tuple[int, float, str]:
    """Return the count, the share and an example of the bytes that quoted-printable writes as =C3;
    0 if all of them may be numbers.
    """
    found = _QUOTED.findall(text) if "=" in text else []
    if sum(_NOT_A_NUMBER.search(mark) is not None for mark in found) * 2 <= len(found):
        return 0, 0.0, ""
    return len(found), sum(map(len, found)) / len(text), found[0]


class Repeated(NamedTuple):
    """How much of a sequence repeats what came one period earlier."""

    share: float
    """The fraction of items that equal the one a period earlier, from 0 to 1."""
    period: int
    """The distance between an item and its repetition, for the period with the greatest share (the
    shortest of equals).
    """


def repeated_share(items: Sequence[object]) -> Repeated:
    """Return the fraction of the items that equal the item one period earlier, for the period with
    the greatest share.
    """
    items = items[:_MAX_ITEMS]
    best = Repeated(0.0, 1)
    for period in _candidates(items):
        num_same = sum(map(operator.eq, items, items[period:]))
        share = num_same / (len(items) - period)
        if share > best.share + 1e-9 and num_same >= _LEAST_TIMES * period:
            best = Repeated(share, period)
    return best


def _candidates(items: Sequence[object]) -> list[int]:
    """Return the periods worth trying, shortest first: the most frequent distances between equal
    runs of items.
    """
    last: dict[tuple[object, ...], int] = {}
    distances: Counter[int] = Counter()
    for place in range(len(items) - _RUN + 1):
        run = tuple(items[place : place + _RUN])
        if run in last:
            distances[place - last[run]] += 1
        last[run] = place
    return sorted(period for period, _ in distances.most_common(4) if period <= len(items) // 2)
