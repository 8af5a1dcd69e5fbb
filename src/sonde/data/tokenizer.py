"""The tokenizer protocol: encode a batch of lines, decode, four special ids, and a file with a
digest.

Every sequence ends in `eos`. Tokenizers trained by sonde use fairseq's specials: `<s>` 0, `<pad>`
1, `</s>` 2, `<unk>`
3. Any object that implements the protocol works with `prepare` and the datasets; nothing needs to
  be registered.

The simplest tokenizers are here: bytes, and whitespace-separated words as in fairseq's dictionary,
read from and written to its `dict.txt`. Whitespace is what Python's `str.split` splits at, as
fairseq does; the tokens are those of `fairseq-preprocess`, byte for byte. It makes one split and
one look-up per word for thousands of lines at once: 28 MB per CPU-second (benchmarks/data.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sonde.errors import DamagedFile, SettingError

SPECIAL_WORDS: Final = ("<s>", "<pad>", "</s>", "<unk>")
"""Spelling of the specials, in the order of their ids."""
_PAD_TO: Final = 8
_OVERWRITE: Final = "#fairseq:overwrite"
_LINE_END: Final = "\0"
_LINE_END_ID: Final = -1
_CHUNK_LINES: Final = 5000
"""Lines per chunk; a quarter faster than a whole block."""
_UNKNOWN: Final = SPECIAL_WORDS.index("<unk>")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialIds:
    """Ids with a special meaning."""

    bos: int = 0
    """Beginning of sequence."""
    pad: int = 1
    """Padding."""
    eos: int = 2
    """End of sequence; also the first input of a decoder."""
    unk: int | None = 3
    """Unknown word; None if the vocabulary covers everything."""


class Ragged(NamedTuple):
    """Sequences of different lengths, stored back to back."""

    tokens: NDArray[np.integer[Any]]
    """Ids of all sequences."""
    sizes: NDArray[np.integer[Any]]
    """Length of each sequence."""

    def sequence(self, number: int) -> NDArray[np.integer[Any]]:
        """Return one of the sequences, as a view."""
        end = int(self.sizes[: number + 1].sum())
        return self.tokens[end - int(self.sizes[number]) : end]


class Tokenizer(Protocol):
    """The tokenizer protocol. `payload` is the content of its file, stored with the data under
    `file_name`.
    """

    @property
    def kind(self) -> str:
        """`hf`, `sentencepiece`, `word`, `bytes`, or your own name."""

    @property
    def file_name(self) -> str:
        """Name of its file in a data directory."""

    @property
    def payload(self) -> bytes:
        """Content of its file."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""

    @property
    def specials(self) -> SpecialIds:
        """The special ids."""

    def encode_batch(self, lines: Sequence[str]) -> Ragged:
        """Return the ids of every line, each with its `eos`."""

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """Return the text of one sequence, without specials."""


def join_ids(rows: Sequence[Sequence[int]], eos: int) -> Ragged:
    """Join lists of ids into one array, adding `eos` to each."""
    flat: list[int] = []
    for row in rows:
        flat += row
        flat.append(eos)
    return Ragged(np.array(flat, np.int32), np.array([len(row) + 1 for row in rows], np.int32))


def encode_in_chunks(
    encode: Callable[[Sequence[str]], Ragged], lines: Sequence[str], chunk_lines: int
) -> Ragged:
    """Call `encode` with a few lines at a time, so that it works within the processor's cache, and
    join the results.
    """
    nothing = np.zeros(0, np.int32)
    chunks = [
        encode(lines[first : first + chunk_lines]) for first in range(0, len(lines), chunk_lines)
    ]
    return Ragged(*map(np.concatenate, zip((nothing, nothing), *chunks, strict=True)))


class BytesTokenizer:
    """A tokenizer without a vocabulary: id = byte + 4, after the special ids. Lossless; 260 ids."""

    kind: Final = "bytes"
    file_name: Final = "tokenizer.bytes"
    payload: Final = b'{"format":"sonde-bytes","version":1,"first_byte_id":4}\n'
    vocab_size: Final = 260
    specials: Final = SpecialIds(unk=None)

    def encode_batch(self, lines: Sequence[str]) -> Ragged:
        """Return the bytes of every line as ids, each with its `eos`."""
        rows = [line.encode() + b"\0" for line in lines]
        sizes = np.array([len(row) for row in rows], np.int32)
        tokens = np.frombuffer(b"".join(rows), np.uint8).astype(np.int32) + len(SPECIAL_WORDS)
        tokens[np.cumsum(sizes, dtype=np.int64) - 1] = self.specials.eos
        return Ragged(tokens, sizes)

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """Return the text; invalid UTF-8 becomes U+FFFD."""
        codes = np.asarray(tokens).astype(np.int64) - len(SPECIAL_WORDS)
        return codes[codes >= 0].astype(np.uint8).tobytes().decode(errors="replace")


def dictionary_of_counts(
    counts: Mapping[str, int], vocab_size: int | None = None
) -> "WordTokenizer":
    """Return the dictionary that fairseq would make: most frequent first, ties by name, padded to a
    multiple of 8.

    `vocab_size` includes the four specials. Words spelled like a special are mapped to it.
    """
    if vocab_size is not None and vocab_size <= len(SPECIAL_WORDS):
        raise SettingError(
            f"a vocabulary of {vocab_size} has no room for words: the specials take 4"
        )
    ranked = sorted(
        ((word, count) for word, count in counts.items() if word not in SPECIAL_WORDS),
        key=lambda item: (-item[1], item[0]),
    )
    if vocab_size is not None:
        ranked = ranked[: vocab_size - len(SPECIAL_WORDS)]
    number = 0
    while (len(ranked) + len(SPECIAL_WORDS)) % _PAD_TO:
        filler = f"madeupword{number:04d}"
        number += 1
        if filler not in counts:
            ranked.append((filler, 0))
    return WordTokenizer("".join(f"{word} {count}\n" for word, count in ranked).encode())


class WordTokenizer:
    """A whitespace word dictionary. `payload` is the content of a `dict.txt`."""

    kind: Final = "word"
    file_name: Final = "dict.txt"
    specials: Final = SpecialIds()

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.words: list[str] = [*SPECIAL_WORDS]
        """The word of each id."""
        self._ids = _Ids(
            {_LINE_END: _LINE_END_ID, **{word: number for number, word in enumerate(SPECIAL_WORDS)}}
        )
        try:
            text = payload.decode()
        except UnicodeDecodeError as error:
            raise DamagedFile("the dictionary is not UTF-8", cause=str(error)) from None
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                self._add(line.rstrip(), number)
        self.vocab_size = len(self.words)
        """Number of ids."""

    def encode_batch(self, lines: Sequence[str]) -> Ragged:
        """Return the ids of every line's words, each line with its `eos`."""
        return encode_in_chunks(self._encode, lines, _CHUNK_LINES)

    def _encode(self, lines: Sequence[str]) -> Ragged:
        text = f" {_LINE_END} ".join(lines) + f" {_LINE_END}"
        # a line contains a NUL character, which looks like a line end
        if text.count(_LINE_END) != len(lines):
            rows = [
                [_UNKNOWN if word == _LINE_END else self._ids[word] for word in line.split()]
                for line in lines
            ]
            return join_ids(rows, self.specials.eos)
        words = text.split()
        tokens = np.fromiter(map(self._ids.__getitem__, words), np.int32, len(words))
        ends = np.flatnonzero(tokens == _LINE_END_ID)
        tokens[ends] = self.specials.eos
        return Ragged(tokens, np.diff(ends, prepend=-1).astype(np.int32))

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """Return the words, separated by spaces."""
        left_out = (self.specials.bos, self.specials.pad, self.specials.eos)
        return " ".join(
            self.words[token] for token in np.asarray(tokens).tolist() if token not in left_out
        )

    def _add(self, line: str, number: int) -> None:
        overwrite = line.endswith(" " + _OVERWRITE)
        word, _, count = line.removesuffix(" " + _OVERWRITE).rpartition(" ")
        if not word or not count.isdecimal():
            raise DamagedFile(
                f"line {number} of the dictionary is not 'word count'", cause=f"it is {line[:80]!r}"
            )
        if word in self._ids and not overwrite:
            raise DamagedFile(
                f"line {number} of the dictionary repeats the word {word!r}",
                hint=f"put {_OVERWRITE} behind the count if the later one should win",
            )
        self._ids[word] = len(self.words)
        self.words.append(word)


class _Ids(dict[str, int]):
    """Ids by word. A missing word is `<unk>` and is not stored, since a text may have millions of
    them.
    """

    def __missing__(self, word: str) -> int:
        return _UNKNOWN
