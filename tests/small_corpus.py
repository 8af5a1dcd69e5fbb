"""A corpus small enough to prepare and train on in a test: numbered words and their
translations.
"""

from pathlib import Path
from typing import Any

from sonde.data.binarise import PrepareSettings, prepare

_WORDS = {
    "en": ("one", "two", "three", "four", "five", "six", "seven", "eight"),
    "de": ("eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht"),
}


def sentences(language: str, num: int, *, first: int = 0) -> list[str]:
    """Sentences of two to six words; the same numbers in every language."""
    words = _WORDS[language]
    return [
        " ".join(
            words[(number * 7 + position * position) % len(words)]
            for position in range(2 + number % 5)
        )
        for number in range(first, first + num)
    ]


def prepare_corpus(
    folder: Path, *, languages: tuple[str, ...] = ("en", "de"), num: int = 48, valid: int = 8
) -> Path:
    """A prepared data directory in `folder`, with word tokens; `valid=0` leaves the valid split
    out.
    """
    splits: dict[str, dict[str, Path]] = {}
    for split, size, first in (("train", num, 0), ("valid", valid, 1000)):
        for language in languages if size else ():
            path = folder / "text" / f"{split}.{language}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in sentences(language, size, first=first)))
            splits.setdefault(split, {})[language] = path
    out = folder / "data"
    prepare(PrepareSettings(splits=splits, out=out, tokenizer="word", vocab_size=None))
    return out


TINY: dict[str, Any] = {
    "model_dim": 16,
    "num_heads": 2,
    "ffn_dim": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
}
"""The smallest model that is one."""
