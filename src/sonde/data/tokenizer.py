"""What a tokenizer is to sonde: encode a batch of lines, decode, four special ids, and a file with a digest.

Every sequence ends in `eos`. Specials of tokenizers trained by sonde are fairseq's: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3.
Whatever keeps this protocol can be handed to `prepare` and to the datasets; nothing is registered anywhere.

The simplest ones are here: bytes, and words between white space, by number, which is fairseq's dictionary, read from and written to its `dict.txt`. White space is what Python's
`str.split` takes for it, which is what fairseq splits at; the tokens are those of `fairseq-preprocess`, byte for byte. One split and one look-up a word
for thousands of lines at once: 28 MB a CPU-second (benchmarks/data.py).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, final

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
"""A quarter faster than a whole block."""
_UNKNOWN: Final = SPECIAL_WORDS.index("<unk>")


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

    @property
    def file_name(self) -> str:
        """How its file is called in a data directory."""

    @property
    def payload(self) -> bytes:
        """Content of its file."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""

    @property
    def specials(self) -> SpecialIds:
        """The special ids."""

    def encode_batch(self, lines: Sequence[str]) -> Encoded:
        """The ids of every line, each with its `eos`."""

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """The text of one sequence; specials are left out."""


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


def count_words(lines: Sequence[str]) -> Counter[str]:
    """How often each word occurs."""
    return Counter("\n".join(lines).split())


def dictionary_of_counts(counts: Mapping[str, int], vocab_size: int | None = None) -> "WordTokenizer":
    """The dictionary fairseq would make: most frequent first, ties by name, filled up to a multiple of 8.

    `vocab_size` counts the four specials. Words spelled like a special are that special.
    """
    if vocab_size is not None and vocab_size <= len(SPECIAL_WORDS):
        raise SettingError(f"a vocabulary of {vocab_size} has no room for words: the specials take 4")
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


@final
class WordTokenizer:
    """A whitespace word dictionary. `payload` is the content of a `dict.txt`."""

    kind: Final = "word"
    file_name: Final = "dict.txt"
    specials: Final = SpecialIds()

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.words: list[str] = [*SPECIAL_WORDS]
        """Word of each id."""
        self._ids = _Ids({_LINE_END: _LINE_END_ID, **{word: number for number, word in enumerate(SPECIAL_WORDS)}})
        try:
            text = payload.decode()
        except UnicodeDecodeError as error:
            raise DamagedFile("the dictionary is not UTF-8", cause=str(error)) from None
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                self._add(line.rstrip(), number)
        self.vocab_size = len(self.words)
        """Number of ids."""

    def encode_batch(self, lines: Sequence[str]) -> Encoded:
        """The ids of every line's words, each line with its `eos`."""
        return encode_in_chunks(self._encode, lines, _CHUNK_LINES)

    def _encode(self, lines: Sequence[str]) -> Encoded:
        text = f" {_LINE_END} ".join(lines) + f" {_LINE_END}"
        if text.count(_LINE_END) != len(lines):  # a line holds a NUL character, which would pass for the end of a line
            rows = [[_UNKNOWN if word == _LINE_END else self._ids[word] for word in line.split()] for line in lines]
            return join_ids(rows, self.specials.eos)
        words = text.split()
        tokens = np.fromiter(map(self._ids.__getitem__, words), np.int32, len(words))
        ends = np.flatnonzero(tokens == _LINE_END_ID)
        tokens[ends] = self.specials.eos
        return Encoded(tokens, np.diff(ends, prepend=-1).astype(np.int32))

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """The words with a space between them."""
        left_out = (self.specials.bos, self.specials.pad, self.specials.eos)
        return " ".join(self.words[token] for token in np.asarray(tokens).tolist() if token not in left_out)

    def _add(self, line: str, number: int) -> None:
        overwrite = line.endswith(" " + _OVERWRITE)
        word, _, count = line.removesuffix(" " + _OVERWRITE).rpartition(" ")
        if not word or not count.isdecimal():
            raise DamagedFile(f"line {number} of the dictionary is not 'word count'", cause=f"it is {line[:80]!r}")
        if word in self._ids and not overwrite:
            raise DamagedFile(
                f"line {number} of the dictionary repeats the word {word!r}",
                hint=f"put {_OVERWRITE} behind the count if the later one should win",
            )
        self._ids[word] = len(self.words)
        self.words.append(word)


@final
class _Ids(dict[str, int]):
    """Ids by word; a missing word is `<unk>`, and is not remembered (the text may hold millions of them)."""

    def __missing__(self, word: str) -> int:
        return _UNKNOWN
