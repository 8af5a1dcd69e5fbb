"""Kinds of bad samples, and what a verdict may call them. The accepted answers stand here before
anything is measured.

Kinds without a rule of their own (`RULELESS`) are rightly answered with a truthful neighbour: "hard
sample" says that these samples did it and that nothing about them can be named, "not known" that
something is wrong.
"""

import base64
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.planted_texts import FOREIGN, _binary, _noise, _scrambled, _shifted

Make = Callable[[str, random.Random], str]

GARBLED: Final = frozenset({"garbled_text"})
_UNSURE: Final = frozenset({"hard_sample", "not_known"})
_WORDS: Final = (
    *(
        "load",
        "init",
        "buffer",
        "request",
        "worker",
        "index",
        "session",
        "cache",
        "socket",
        "queue",
        "frame",
    ),
    *(
        "river",
        "window",
        "yellow",
        "number",
        "forest",
        "engine",
        "winter",
        "silver",
        "garden",
        "market",
        "copper",
    ),
)
_LATIN: Final = (
    "French",
    "Dutch",
    "Turkish",
    "Spanish",
    "Italian",
    "Polish",
    "Finnish",
    "Portuguese",
    "Swedish",
)
_OTHER: Final = ("Russian", "Greek")
_PROSE: Final = (
    "He had come down from the hills before the snow, and nobody in the valley remembered his name."
    " The inn was closed, the mill was closed, and only the blacksmith's fire was burning. She gave"
    " him bread and asked nothing. In the morning he was gone again, and on the table lay a small"
    " silver ring that had belonged to her mother. The old people said that it was a sign. "
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of bad sample."""

    make: Make
    """From the text of a sample to what it becomes, which is cut to the sample's length."""
    accepted: frozenset[str]
    """What a verdict may call it."""


def _many(piece: Callable[[random.Random], str], num: int = 60, between: str = " ") -> Make:
    return lambda _, source: between.join(piece(source) for _ in range(num))


def _foreign(names: tuple[str, ...]) -> Make:
    def make(_: str, source: random.Random) -> str:
        words = FOREIGN[names[source.randrange(len(names))]].split()
        first = source.randrange(len(words) // 2)
        return " ".join([*words[first:], *words, *words])

    return make


def _mojibake(text: str, source: random.Random) -> str:
    """UTF-8 read as Windows-1252, of a text with accents and quotes."""
    accented = " ".join(
        f"“{word}” é{word}ü – naïve" if source.random() < 0.5 else f"{word}ß’s"
        for word in text.split()
    )
    return accented.encode().decode("cp1252", "replace")


def _per_word(change: Callable[[str, random.Random], str]) -> Make:
    return lambda text, source: " ".join(change(word, source) for word in text.split())


def _shuffled(text: str, source: random.Random) -> str:
    words = text.split()
    source.shuffle(words)
    return " ".join(words)


def _log(source: random.Random) -> str:
    level = source.choice(("INFO", "WARN", "ERROR", "DEBUG"))
    word = source.choice(_WORDS)
    return (
        f"2024-0{source.randint(1, 9)}-1{source.randint(0, 9)}"
        f" 0{source.randint(1, 9)}:{source.randint(10, 59)}"
        f":{source.randint(10, 59)},{source.randint(100, 999)}"
        f" {level} [{word}-{source.randint(1, 32)}] {word}.{source.choice(_WORDS)}:"
        f" code={source.randint(1, 599)}"
    )


def _code(source: random.Random) -> str:
    one, two, three = (source.choice(_WORDS) for _ in range(3))
    return (
        f"def {one}_{two}(self, {three}=None): if {three} is None: return"
        f" self.{two}[{source.randint(0, 9)}]; for i in range(len({one})): x += {two}({three}, i);"
    )


def _markup(source: random.Random) -> str:
    one = source.choice(_WORDS)
    two = source.choice(_WORDS)
    return (
        f'<div class="{one}-{two}"><a'
        f' href="/{two}/{source.randint(1, 99)}.html">{one}</a></div><br/><td'
        f' align="{two}">&nbsp;</td>'
    )


def _json(source: random.Random) -> str:
    return (
        f'{{"{source.choice(_WORDS)}": {source.randint(1, 9999)}, "{source.choice(_WORDS)}":'
        f' ["{source.choice(_WORDS)}", null, true]}},'
    )


def _phrase(text: str, source: random.Random) -> str:
    """A phrase of many words, over and over."""
    words = text.split()
    # what stands there once is no repetition
    num = min(source.randint(9, 14), max(len(words) // 4, 1))
    return " ".join([*words[:num], *(["and", "then"] if num > 3 else [])] * 40)


def _leet(word: str, _: random.Random) -> str:
    return word.translate(str.maketrans("aeiostAEIOST", "431057431057"))


KINDS: Final[dict[str, Kind]] = {
    "noise of the keyboard": Kind(make=_noise, accepted=GARBLED),
    "letters scrambled": Kind(make=_scrambled, accepted=GARBLED | {"foreign_language"}),
    "bytes of a binary": Kind(
        make=_binary,
        accepted=GARBLED | {"mis_decoded", "control_characters", "other_script", "empty"},
    ),
    "base 64": Kind(
        make=lambda text, source: base64.b64encode(source.randbytes(3 * len(text))).decode(),
        accepted=GARBLED | {"code"},
    ),
    "letters shifted": Kind(make=_shifted, accepted=GARBLED | {"foreign_language"}),
    "mis-decoded": Kind(make=_mojibake, accepted=frozenset({"mis_decoded"})),
    "foreign language": Kind(make=_foreign(_LATIN), accepted=frozenset({"foreign_language"})),
    "another script": Kind(
        make=_foreign(_OTHER), accepted=frozenset({"other_script", "foreign_language"})
    ),
    "markup": Kind(make=_many(_markup, 20), accepted=frozenset({"markup"})),
    "code": Kind(make=_many(_code, 20), accepted=frozenset({"code"})),
    "table of numbers": Kind(
        make=_many(
            lambda source: (
                f"{source.randint(1, 99999)} | {source.random():.3f} | {source.randint(0, 9)}"
            ),
            60,
        ),
        accepted=frozenset({"table"}),
    ),
    "log": Kind(make=_many(_log, 20), accepted=frozenset({"log"})),
    "capitals": Kind(make=lambda text, _: text.upper(), accepted=frozenset({"shouting"})),
    "one word over and over": Kind(
        make=lambda text, source: " ".join([source.choice(text.split() or ["so"])] * 90),
        accepted=frozenset({"repetition"}),
    ),
    "a phrase over and over": Kind(make=_phrase, accepted=frozenset({"repetition"})),
    "control characters": Kind(
        make=_per_word(lambda word, source: word + chr(source.choice((1, 2, 7, 8, 14, 27)))),
        accepted=frozenset({"control_characters", "garbled_text"}),
    ),
}
"""Those that a rule was written for."""

RULELESS: Final[dict[str, Kind]] = {
    "words shuffled": Kind(make=_shuffled, accepted=_UNSURE),
    "words backwards": Kind(
        make=_per_word(lambda word, _: word[::-1]),
        accepted=_UNSURE | GARBLED | {"foreign_language"},
    ),
    "vowels left out": Kind(
        make=_per_word(
            lambda word, _: (
                "".join(letter for letter in word if letter not in "aeiouäöüAEIOU") or "t"
            )
        ),
        accepted=_UNSURE | GARBLED | {"foreign_language"},
    ),
    "digits for letters": Kind(
        make=_per_word(_leet), accepted=_UNSURE | GARBLED | {"code", "table"}
    ),
    "no spaces": Kind(
        make=lambda text, _: text.replace(" ", ""),
        accepted=_UNSURE | GARBLED | {"foreign_language"},
    ),
    "sequence of a genome": Kind(
        make=_many(lambda source: "".join(source.choice("ACGT") for _ in range(10)), 40),
        accepted=_UNSURE | GARBLED | {"shouting", "foreign_language", "repetition"},
    ),
    "dump in hexadecimal": Kind(
        make=_many(lambda source: source.randbytes(4).hex(), 60),
        accepted=_UNSURE | GARBLED | {"table", "code", "log"},
    ),
    "random words": Kind(
        make=_many(lambda source: source.choice(_WORDS), 80),
        accepted=_UNSURE | {"repetition", "foreign_language"},
    ),
    "addresses of pages": Kind(
        make=_many(
            lambda source: (
                f"https://{source.choice(_WORDS)}.example.org/{source.choice(_WORDS)}"
                f"?id={source.randint(1, 9999)}"
            ),
            25,
        ),
        accepted=_UNSURE | GARBLED | {"markup", "code", "log", "table"},
    ),
    "JSON": Kind(make=_many(_json, 30), accepted=_UNSURE | {"code", "markup", "table", "log"}),
    "emoji": Kind(
        make=_many(
            lambda source: "".join(chr(source.randint(0x1F600, 0x1F64F)) for _ in range(5)), 30
        ),
        accepted=_UNSURE | GARBLED | {"other_script", "empty", "mis_decoded"},
    ),
    "prose of another kind": Kind(
        make=lambda _, source: _PROSE[source.randrange(60) :] + _PROSE,
        accepted=_UNSURE | {"foreign_language", "duplicated_text"},
    ),
}
"""Those that none was written for."""


def foreign(kind: str, own: str) -> Make | None:
    """How a text of another language is made, where a kind is that: not in the corpus's own."""
    names = {"foreign language": _LATIN, "another script": _OTHER}.get(kind)
    return None if names is None else _foreign(tuple(name for name in names if name != own))


ALL: Final = KINDS | RULELESS
"""Kinds of a sample by itself."""
PAIRS: Final[dict[str, frozenset[str]]] = {
    "copied": frozenset({"copied_target", "foreign_language"}),
    "swapped": frozenset({"swapped_pair", "foreign_language"}),
    "mismatched": frozenset({"mismatched_pair"}),
    "truncated": frozenset({"truncated_target", "mismatched_pair"}),
}
"""Kinds of a pair, and what they may be called."""
DUPLICATED: Final = frozenset({"duplicated_text"})
