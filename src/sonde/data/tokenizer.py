"""What a tokenizer is to sonde: encode a batch of lines, decode, four special ids, and a file with a digest.

Every sequence ends in `eos`. Specials of tokenizers trained by sonde are fairseq's: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3.
Whatever keeps this protocol can be handed to `prepare` and to the datasets; nothing is registered anywhere.
"""

from collections.abc import Callable, Sequence
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


def join_ids(rows: Sequence[Sequence[int]], eos: int) -> Encoded:
    """Lists of ids as one array, `eos` added to each."""
    flat: list[int] = []
    for row in rows:
        flat += row
        flat.append(eos)
    return Encoded(np.array(flat, np.int32), np.array([len(row) + 1 for row in rows], np.int32))


def encode_in_chunks(encode: Callable[[Sequence[str]], Encoded], lines: Sequence[str], chunk_lines: int) -> Encoded:
    """What `encode` gives for all lines, called with a few at a time, so that it works within the processor's cache."""
    nothing = np.zeros(0, np.int32)
    chunks = [encode(lines[first : first + chunk_lines]) for first in range(0, len(lines), chunk_lines)]
    return Encoded(*map(np.concatenate, zip((nothing, nothing), *chunks, strict=True)))


@final
class BytesTokenizer:
    """The tokenizer without a vocabulary: id = byte + 4, the special ids first. Loses nothing; 260 ids."""

    kind: Final = "bytes"
    file_name: Final = "tokenizer.bytes"
    payload: Final = b'{"format":"sonde-bytes","version":1,"first_byte_id":4}\n'
    vocab_size: Final = 260
    specials: Final = SpecialIds(unk=None)

    def encode_batch(self, lines: Sequence[str]) -> Encoded:
        """The bytes of every line, each with its `eos`."""
        rows = [line.encode() + b"\0" for line in lines]
        sizes = np.array([len(row) for row in rows], np.int32)
        tokens = np.frombuffer(b"".join(rows), np.uint8).astype(np.int32) + len(SPECIAL_WORDS)
        tokens[np.cumsum(sizes, dtype=np.int64) - 1] = self.specials.eos
        return Encoded(tokens, sizes)

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """The text; bytes that are not UTF-8 become U+FFFD."""
        codes = np.asarray(tokens).astype(np.int64) - len(SPECIAL_WORDS)
        return codes[codes >= 0].astype(np.uint8).tobytes().decode(errors="replace")
