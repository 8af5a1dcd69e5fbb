"""The tokens of a sample as text, by any tokenizer with `decode`: tokenizers, transformers, sentencepiece, tiktoken, sonde's own.

Without a tokenizer the ids are written as numpy prints them, but whole and on one line.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


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


def ids_text(tokens: Sequence[int]) -> str:
    """Ids in brackets, flush right like numpy's, without its ellipsis and line breaks."""
    words = [*map(str, tokens)]
    width = max(map(len, words), default=0)
    return f"[{' '.join([word.rjust(width) for word in words])}]"


def sample_text(tokens: Sequence[int], tokenizer: Decoder) -> str:
    """The text of a sample. The tokenizer is handed one list of plain ints, which all of them take."""
    return str(tokenizer.decode(list(tokens)))


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
