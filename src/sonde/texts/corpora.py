"""Read a corpus piece by piece: text files, parallel text files, JSON Lines, or a data directory made by `sonde prepare`.

A `Piece` is a location in a file, which the worker reads itself. Only compressed and parallel files, which must be read
from the start or side by side, carry their bytes in the piece. Sending pieces to other processes is therefore cheap,
and a corpus of any size is read in constant memory.
"""

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import orjson

from sonde.data.directory import DataDirectory
from sonde.data.text_blocks import BAD_KINDS, EMPTY, TextBlock, cut_blocks, first_bytes, read_block, split_lines
from sonde.data.token_file import TokenFile
from sonde.data.tokenizer import Tokenizer
from sonde.errors import DamagedFile, SettingError
from sonde.records.files import open_regular

_MAX_LINE_BYTES: Final = 1_000_000
"""Longer lines are flagged as over-long and are not samples, as in `sonde prepare`."""
_MAX_PIECE_BYTES: Final = 1 << 30
_NUM_PROBES: Final = 48
"""The number of places in a plain file that are sampled."""
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")

Form = Literal["text", "jsonl", "data"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """A corpus on disk: its files and how to read them."""

    form: Form
    """Text files, JSON Lines, or a data directory."""
    paths: tuple[Path, ...]
    """One file, two files for parallel texts (source first), or a data directory."""
    name: str = "train"
    """The name for its samples in a skip list: the split of a data directory, `train` for parallel texts, otherwise the file name."""
    fields: tuple[str, ...] = ()
    """The JSON fields that hold the text, or the source and the target. Dots address nested objects."""

    @property
    def is_parallel(self) -> bool:
        """Whether the corpus consists of source and target pairs."""
        if self.form == "data":
            return len(DataDirectory(self.paths[0]).languages(self.name)) == 2
        return len(self.paths) == 2 or len(self.fields) == 2

    def place(self, number: int) -> str:
        """Return where to find a text by its index, such as `file:line`."""
        return f"{self.name} {number}" if self.form == "data" else f"{self.paths[0]}:{number + 1}"

    @property
    def num_bytes(self) -> int:
        """The size of the files in bytes."""
        if self.form == "data":
            directory = DataDirectory(self.paths[0])
            return sum(directory.tokens(self.name, one).flat.nbytes for one in directory.languages(self.name))
        return sum(path.stat().st_size for path in self.paths)


class Parallel(NamedTuple):
    """The same number of lines from two files."""

    contents: tuple[bytes, bytes]


class Samples(NamedTuple):
    """A range of samples in a data directory."""

    path: str
    start: int
    end: int


class Piece(NamedTuple):
    """A part of a corpus that has not been read yet."""

    block: TextBlock | Parallel | Samples
    """Where the texts are."""
    name: str
    """The name of the corpus."""
    fields: tuple[str, ...]
    """The fields to read from JSON Lines."""
    num_file_bytes: int
    """How many bytes of the corpus's files this piece covers."""


class Row(NamedTuple):
    """One text or pair of a corpus."""

    line: int
    """The line in its piece, from 0; in a data directory, the sample's position in its piece."""
    is_sample: bool
    """Whether `sonde prepare` makes a sample of it. Empty, over-long and broken lines are not samples."""
    texts: tuple[str, ...]
    """The text, or source and target. Over-long texts are truncated."""
    num_bytes: int
    """The total size in bytes before truncation."""
    fault: str = ""
    """Why the text could not be read, if so."""


def open_corpus(paths: Sequence[Path], *, fields: Sequence[str] = (), split: str | None = None) -> Corpus:
    """Return the corpus at these paths. Raises `SettingError` early if they are not a corpus."""
    if len(paths) == 1 and paths[0].is_dir():
        directory = DataDirectory(paths[0])
        name = split or next(iter(directory.splits))
        if not 1 <= len(directory.languages(name)) <= 2:
            raise SettingError(f"{paths[0]} has {len(directory.languages(name))} languages, not one or two")
        return Corpus(form="data", paths=tuple(paths), name=name)
    if not 1 <= len(paths) <= 2:
        raise SettingError(f"an audit reads one file, or two for parallel texts, not {len(paths)}")
    for path in paths:
        try:
            with open_regular(path, follow=True) as file:
                start = file.read(2)
        except OSError as error:
            raise SettingError(f"{path} cannot be read", cause=error.strerror) from None
        if start in _UTF16:
            raise SettingError(f"{path} is UTF-16", hint=f"`iconv -f UTF-16 -t UTF-8 {path} > NEW` converts it")
        first_bytes(path)
    suffixes = {suffix for path in paths for suffix in path.suffixes}
    if fields or suffixes & {".jsonl", ".ndjson"}:
        if len(paths) > 1 or not len(fields) <= 2:
            raise SettingError("JSON Lines are one file with one field, or two for pairs")
        return Corpus(form="jsonl", paths=tuple(paths), name=paths[0].name, fields=tuple(fields) or ("text",))
    return Corpus(form="text", paths=tuple(paths), name=(split or "train") if len(paths) == 2 else paths[0].name)


def pieces_of(corpus: Corpus, piece_bytes: int) -> Iterator[Piece]:
    """Yield all pieces of a corpus, in order."""
    if corpus.form == "data":
        yield from _samples(corpus, piece_bytes)
    elif len(corpus.paths) == 2:
        yield from _side_by_side(corpus, piece_bytes)
    else:
        for block in cut_blocks(corpus.paths[0].absolute(), piece_bytes):
            yield Piece(block, corpus.name, corpus.fields, block.num_file_bytes)


def read_piece(piece: Piece, wanted: slice | Sequence[int] = slice(None)) -> list[Row]:
    """Read the texts of a piece, or only the lines in `wanted`."""
    block = piece.block
    if isinstance(block, Samples):
        return _read_samples(block, piece.name, wanted)
    if isinstance(block, TextBlock):
        _check_size(block)
    contents = (read_block(block),) if isinstance(block, TextBlock) else block.contents
    if piece.fields:
        lines = contents[0].removesuffix(b"\n").split(b"\n")
        return [_read_record(number, lines[number], piece.fields) for number in _chosen(len(lines), wanted)]
    sides = [split_lines(content, _MAX_LINE_BYTES) for content in contents]
    numbers = _chosen(len(sides[0].lines), wanted)
    chosen = [[side.lines[number] for number in numbers] for side in sides]
    sizes = map(len, chosen[0]) if len(sides) == 1 else map(operator.add, *(map(len, side) for side in chosen))
    # Same as calling Row(), in a third of the time; this dominates the cost of reading.
    fields = zip(numbers, itertools.repeat(True), zip(*chosen, strict=True), sizes, itertools.repeat(""))
    rows: list[Row] = list(map(tuple.__new__, itertools.repeat(Row), fields))
    faults = {line: BAD_KINDS[side.wrong[line] - 1] for side in sides for line in np.flatnonzero(side.wrong).tolist()}
    for place, number in enumerate(numbers) if faults else ():
        kind = faults.get(number)
        if kind is not None:
            texts = tuple(text[:_MAX_LINE_BYTES] for text in rows[place].texts)
            rows[place] = rows[place]._replace(is_sample=False, texts=texts, fault="" if kind == EMPTY else kind)
    return rows


def _chosen(number: int, wanted: slice | Sequence[int]) -> Sequence[int]:
    return range(number)[wanted] if isinstance(wanted, slice) else wanted


def sample_of(corpus: Corpus, num: int, piece_bytes: int = 1 << 18) -> list[Row]:
    """Return about `num` rows spread over the corpus; compressed and parallel files are sampled from their beginning only."""
    rows: list[Row] = []
    every = 1
    for piece in _probes(corpus, piece_bytes):
        found = read_piece(piece, slice(None, None, every))
        if not rows:
            every = max(len(found) * _NUM_PROBES // (2 * num), 1)
            found = found[::every]
        rows += found
    return rows[:: -(-len(rows) // num) or 1]


def _probes(corpus: Corpus, piece_bytes: int) -> Iterator[Piece]:
    """Yield pieces at even distances."""
    pieces = pieces_of(corpus, piece_bytes)
    first = next(pieces, None)
    if first is None:
        return
    yield first
    is_streamed = isinstance(first.block, Parallel) or (
        isinstance(first.block, TextBlock) and first.block.content is not None
    )
    step = 1 if is_streamed else max(corpus.num_bytes // (piece_bytes * _NUM_PROBES), 1)
    yield from itertools.islice(itertools.islice(pieces, step - 1, None, step), _NUM_PROBES)


def _samples(corpus: Corpus, piece_bytes: int) -> Iterator[Piece]:
    directory = DataDirectory(corpus.paths[0])
    files = [directory.tokens(corpus.name, language) for language in directory.languages(corpus.name)]
    num = min(len(tokens) for tokens in files)
    num_bytes = sum(tokens.flat.nbytes for tokens in files)
    step = max(int(piece_bytes * num / max(num_bytes, 1) / 2), 1)
    for start in range(0, num, step):
        end = min(start + step, num)
        block = Samples(str(corpus.paths[0].absolute()), start, end)
        yield Piece(block, corpus.name, (), num_bytes * (end - start) // num)


def _side_by_side(corpus: Corpus, piece_bytes: int) -> Iterator[Piece]:
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    num_bytes = 0
    both = itertools.zip_longest(*(_lines(path.absolute(), piece_bytes) for path in corpus.paths))
    for number, (one, other) in enumerate(both):
        if one is None or other is None:
            longer, shorter = corpus.paths if other is None else corpus.paths[::-1]
            hint = "the texts of a pair have a line for each line of the other"
            raise SettingError(f"{longer} has more lines than {shorter}, which has {number:,}", hint=hint)
        sides[0].append(one)
        sides[1].append(other)
        num_bytes += len(one) + len(other) + 2
        if num_bytes >= piece_bytes:
            yield _parallel(corpus, sides, num_bytes)
            sides, num_bytes = ([], []), 0
    if sides[0]:
        yield _parallel(corpus, sides, num_bytes)


def _parallel(corpus: Corpus, sides: tuple[list[bytes], list[bytes]], num_bytes: int) -> Piece:
    contents = b"\n".join(sides[0]) + b"\n", b"\n".join(sides[1]) + b"\n"
    return Piece(Parallel(contents), corpus.name, (), num_bytes)


def _lines(path: Path, piece_bytes: int) -> Iterator[bytes]:
    for block in cut_blocks(path, piece_bytes):
        _check_size(block)
        yield from read_block(block).removesuffix(b"\n").split(b"\n")


def _check_size(block: TextBlock) -> None:
    if block.end - block.start > _MAX_PIECE_BYTES:
        raise DamagedFile(
            f"{block.path} has a line of {block.end - block.start:,} bytes",
            hint="a text file has a document on each line",
        )


def _read_record(number: int, line: bytes, fields: Sequence[str]) -> Row:
    try:
        record = orjson.loads(line)
    except ValueError:
        return _faulty_record(number, line, fields, "it is no JSON")
    texts = []
    for name in fields:
        found = functools.reduce(
            lambda value, part: value.get(part) if isinstance(value, dict) else None, name.split("."), record
        )
        if not isinstance(found, str):
            return _faulty_record(number, line, fields, f"it has no text in a field {name!r}")
        texts.append(found[:_MAX_LINE_BYTES])
    return Row(line=number, is_sample=True, texts=tuple(texts), num_bytes=len(line))


def _faulty_record(number: int, line: bytes, fields: Sequence[str], fault: str) -> Row:
    text = line[:200].decode(errors="replace")
    return Row(line=number, is_sample=True, texts=(text,) * len(fields), num_bytes=len(line), fault=fault)


def _read_samples(block: Samples, split: str, wanted: slice | Sequence[int]) -> list[Row]:
    files = _opened(block.path, split)
    rows = []
    for place in _chosen(block.end - block.start, wanted):
        number = block.start + place
        texts = tuple(tokenizer.decode(np.asarray(tokens[number])[:_MAX_LINE_BYTES]) for tokens, tokenizer in files)
        rows.append(Row(line=place, is_sample=True, texts=texts, num_bytes=sum(map(len, texts))))
    return rows


@functools.lru_cache(maxsize=2)
def _opened(path: str, split: str) -> list[tuple[TokenFile, Tokenizer]]:
    directory = DataDirectory(path)
    return [(directory.tokens(split, one), directory.tokenizer(one)) for one in directory.languages(split)]
