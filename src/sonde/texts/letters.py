"""The class (letter, digit, sign, control, …), script and case-folded form of characters, as lookup tables for whole arrays.

The tables are filled when a character first occurs, so looking up a megabyte of text takes a few milliseconds.
"""

import unicodedata
from typing import Final

import numpy as np
from numpy.typing import NDArray

LOWER: Final = 0
"""A letter that is not uppercase, or a combining mark."""
UPPER: Final = 1
DIGIT: Final = 2
SPACE: Final = 3
PUNCTUATION: Final = 4
SIGN: Final = 5
"""Characters common in markup, code, tables and logs but rare in prose: < > { } [ ] = _ | and similar."""
SYMBOL: Final = 6
"""Emoji, arrows and currency symbols."""
CONTROL: Final = 7
BROKEN: Final = 8
"""Not a valid character: U+FFFD, surrogates, private-use and unassigned code points."""
NUM_CLASSES: Final = 9

SCRIPTS: Final = (
    *("", "Other", "Latin", "Cyrillic", "Greek", "Hebrew", "Arabic", "Devanagari", "Thai", "Hangul", "Hiragana"),
    *("Katakana", "CJK", "Armenian", "Georgian", "Bengali", "Tamil"),
)
"""The names of the scripts, by number. The first entry stands for everything that is not a letter."""
_SCRIPT_OF_NAME: Final = {name.upper(): number for number, name in enumerate(SCRIPTS) if number > 1}
_SIGNS: Final = frozenset("<>{}[]=_|\\/&#*^~$@%+`")
_UNKNOWN: Final = 255
_NUM_CODES: Final = 0x110000

_classes = np.full(_NUM_CODES, _UNKNOWN, np.uint8)
_scripts = np.zeros(_NUM_CODES, np.uint8)
_folded = np.zeros(_NUM_CODES, np.int32)


def codes_of(text: str) -> NDArray[np.int32]:
    """Return the code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)


def classes_of(codes: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Return the class of each character."""
    found = _classes[codes]
    missing = codes[found == _UNKNOWN]
    if len(missing):
        for code in np.unique(missing).tolist():
            _fill(code)
        found = _classes[codes]
    return found


def scripts_of(codes: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Return the script of each character as an index into SCRIPTS. Call `classes_of` on the characters first."""
    return _scripts[codes]


def folded(codes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return lowercase letters, with every digit as 0 and all whitespace as a blank. Call `classes_of` on the characters first."""
    return _folded[codes]


def _fill(code: int) -> None:
    character = chr(code)
    category = unicodedata.category(character)
    _classes[code] = _class_of(character, category)
    _folded[code] = code
    if category[0] == "L":
        name = unicodedata.name(character, "").split(" ", 1)[0].split("-", 1)[0]
        _scripts[code] = _SCRIPT_OF_NAME.get(name, 1)
        lower = character.lower()
        _folded[code] = ord(lower) if len(lower) == 1 else code
    elif category == "Nd":
        _folded[code] = ord("0")
    elif character.isspace():
        _folded[code] = ord(" ")


def _class_of(character: str, category: str) -> int:
    if category in ("Lu", "Lt"):
        return UPPER
    if category[0] in "LM":
        return LOWER
    if category[0] == "N":
        return DIGIT
    if character in "\t\n\r\v\f" or category[0] == "Z":
        return SPACE
    if character in _SIGNS:
        return SIGN
    if category[0] == "P":
        return PUNCTUATION
    if category == "Cc":
        return CONTROL
    if character == "\ufffd" or category in ("Cn", "Co", "Cs"):
        return BROKEN
    return SYMBOL
