"""The tokens of a sample as text, by any tokenizer with `decode`: tokenizers, transformers, sentencepiece, tiktoken, sonde's own.

Without a tokenizer the ids are written as numpy prints them, but whole and on one line.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_TOKENS_AT_ONCE: Final = 1 << 16
"""Ids whose digits are computed together: what that needs fits into the cache."""
_POWERS_OF_TEN: Final = 10 ** np.arange(1, 10)


class Decoder(Protocol):
    """Anything that turns a list of ids into text."""

    def decode(self, ids: Any, /) -> Any:
        """The text of one list of ids."""
        ...


class Fetched(NamedTuple):
    """A sample as it lies on the disk."""

    dataset: str
    """Name of its dataset."""
    tokens: list[int]
    """All of its ids."""


class FetchedMany(NamedTuple):
    """Many samples as they lie on the disk, in the order they were asked for."""

    datasets: list[str]
    """Name of each one's dataset."""
    tokens: list[list[int]] | NDArray[np.int32]
    """The ids of each; as an array where all have as many."""
    missing: dict[int, str]
    """By its place, why a sample could not be had. The other two have something there, to be disregarded."""


def ids_text(tokens: Sequence[int]) -> str:
    """Ids in brackets, flush right like numpy's, without its ellipsis and line breaks."""
    words = [*map(str, tokens)]
    width = max(map(len, words), default=0)
    return f"[{' '.join([word.rjust(width) for word in words])}]"


def ids_texts(rows: NDArray[np.int32]) -> list[str]:
    """`ids_text` of every row, several times faster: rows of one width have their digits computed together."""
    texts = [""] * len(rows)
    if not rows.size:
        return [ids_text([])] * len(rows)
    widths = 1 + np.searchsorted(_POWERS_OF_TEN, rows.max(axis=1), side="right")
    widths[rows.min(axis=1) < 0] = 0
    at_once = max(1, _TOKENS_AT_ONCE // rows.shape[1])
    for width in np.unique(widths).tolist():
        places = np.flatnonzero(widths == width)
        for start in range(0, len(places), at_once):
            some = places[start : start + at_once]
            # No token has a negative id, but what a file holds may be anything.
            made = _padded(rows[some], width) if width else [ids_text(row) for row in rows[some].tolist()]
            for place, text in zip(some.tolist(), made, strict=True):
                texts[place] = text
    return texts


def sample_text(tokens: Sequence[int], tokenizer: Decoder) -> str:
    """The text of a sample. The tokenizer is handed one list of plain ints, which all of them take."""
    return str(tokenizer.decode(list(tokens)))


def sample_texts(samples: FetchedMany, tokenizer: Decoder | None) -> list[str]:
    """The text of every sample, or its ids. Where a tokenizer fails the sample is noted as missing."""
    if isinstance(samples.tokens, np.ndarray):
        if tokenizer is None:
            return ids_texts(samples.tokens)
        rows = samples.tokens.tolist()
    else:
        rows = samples.tokens
    if tokenizer is None:
        return [ids_text(tokens) for tokens in rows]
    texts = [""] * len(rows)
    for place, tokens in enumerate(rows):
        if place not in samples.missing:
            try:
                texts[place] = sample_text(tokens, tokenizer)
            except Exception as error:  # noqa: BLE001  a foreign tokenizer may raise anything: one sample, not the rest
                samples.missing[place] = f"the tokenizer failed: {error!r:.200}"
    return texts


def token_texts(tokens: Sequence[int], tokenizer: Decoder) -> list[str]:
    """The text of every token, such that they make up the text of the whole where the tokenizer allows it.

    A token's text is what it adds to the text of the few before it, so that spaces stand where they stand in the text and
    a character spread over several byte tokens appears with the last of them.
    """
    texts: list[str] = []
    context = 0
    before = ""
    for place in range(len(tokens)):
        now = sample_text(tokens[context : place + 1], tokenizer)
        if now.endswith("\ufffd") and place + 1 < len(tokens):
            texts.append("")  # part of a character: wait for the rest
            continue
        added = now[len(before) :] if now.startswith(before) else sample_text(tokens[place : place + 1], tokenizer)
        texts.append(added)
        # Text that was given is decoded again as context of the next token, but never more than a few tokens of it.
        context = max(context, place)
        before = sample_text(tokens[context : place + 1], tokenizer)
    return texts


def _padded(rows: NDArray[np.int32], width: int) -> list[str]:
    """Rows of ids from 0 with at most `width` digits, each in as many columns."""
    columns = np.full((*rows.shape, 1 + width), ord(" "), np.uint8)  # a space, then the id flush right
    rest, is_shown = rows, np.ones(rows.shape, bool)
    for column in range(width, 0, -1):
        above = rest // 10
        np.copyto(columns[:, :, column], rest - 10 * above + ord("0"), where=is_shown, casting="unsafe")
        rest, is_shown = above, above > 0
    columns[:, 0, 0] = ord("[")
    size = columns[0].size
    text = columns.tobytes().decode("ascii")
    return [f"{text[start : start + size]}]" for start in range(0, len(text), size)]
