"""What a tokenizer is to sonde: encode a batch of lines, decode, four special ids, and a file with a digest.

Every sequence ends in `eos`. Specials of tokenizers trained by sonde are fairseq's: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3.
Whatever keeps this protocol can be handed to `prepare` and to the datasets; nothing is registered anywhere.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

SPECIAL_WORDS: Final = ("<s>", "<pad>", "</s>", "<unk>")
"""Spelling of the specials, in the order of their ids."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialIds:
    """Ids with a meaning of their own."""

    bos: int = 0
    """Begin of sequence."""
    pad: int = 1
    """Fills a row up."""
    eos: int = 2
    """End of sequence; also the first input of a decoder."""
    unk: int | None = 3
    """What the vocabulary does not know; None when it knows everything."""


class Encoded(NamedTuple):
    """Many sequences, one after the other."""

    tokens: NDArray[np.int32]
    """All ids."""
    sizes: NDArray[np.int32]
    """Ids of each sequence, its `eos` included."""


class Tokenizer(Protocol):
    """The protocol. `payload` is the tokenizer's file; it travels with the data under `file_name`."""

    @property
    def kind(self) -> str:
        """`hf`, `sentencepiece`, `word`, `bytes`, or a word of your own."""
        ...

    @property
    def file_name(self) -> str:
        """How its file is called in a data directory."""
        ...

    @property
    def payload(self) -> bytes:
        """Content of its file."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        ...

    @property
    def specials(self) -> SpecialIds:
        """The special ids."""
        ...

    def encode_batch(self, lines: Sequence[str]) -> Encoded:
        """The ids of every line, each with its `eos`."""
        ...

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """The text of one sequence; specials are left out."""
        ...


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """SHA-256 of the tokenizer's file: equal digests mean equal tokens."""
    return hashlib.sha256(tokenizer.payload).hexdigest()


def join_ids(rows: Sequence[Sequence[int]], eos: int) -> Encoded:
    """Lists of ids as one array, `eos` added to each."""
    flat: list[int] = []
    for row in rows:
        flat += row
        flat.append(eos)
    sizes = np.fromiter((len(row) + 1 for row in rows), np.int32, len(rows))
    return Encoded(np.array(flat, np.int32), sizes)
