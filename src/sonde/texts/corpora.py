"""Read a corpus piece by piece: text files, parallel text files, JSON Lines, or a data directory
made by `sonde prepare`.

A `Piece` knows where its texts are, and the worker reads them itself. Only compressed and parallel
files, which must be read from the start or side by side, carry their bytes in the piece. Sending
pieces to other processes is therefore cheap, and a corpus of any size is read in constant memory.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import orjson

from sonde.data.directory import DataDirectory
from sonde.data.text_blocks import BAD_KINDS, EMPTY, TextBlock, cut_blocks, read_block, split_lines
from sonde.data.token_file import TokenFile
from sonde.data.tokenizer import Tokenizer
from sonde.errors import SettingError
from sonde.records.files import open_regular

_MAX_LINE_BYTES: Final = 1_000_000
"""Longer lines are flagged as over-long and are not samples, as in `sonde prepare`."""
_NUM_PROBES: Final = 48
_PROBE_BYTES: Final = 1 << 18
"""The number of places in a plain file that are sampled, and the bytes that are read at each."""
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
    """The name for its samples in a skip list: the split of a data directory, `train` for parallel
    texts, otherwise the file name.
    """
    fields: tuple[str, ...] = ()
    """The JSON fields that hold the text, or the source and the target. Dots address nested
    objects.
    """

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
            return sum(
                directory.tokens(self.name, language).flat.nbytes
                for language in directory.languages(self.name)
            )
        return sum(path.stat().st_size for path in self.paths)


class TextEntry(NamedTuple):
    """One text or pair of a corpus."""

    is_sample: bool
    """Whether `sonde prepare` makes a sample of it. Empty, over-long and broken lines are not
    samples.
    """
    texts: tuple[str, ...]
    """The text, or source and target. Over-long texts are truncated."""
    num_bytes: int
    """The total size in bytes before truncation."""
    fault: str = ""
    """Why the text could not be read, if so."""


def open_corpus(
    paths: Sequence[Path], *, fields: Sequence[str] = (), split: str | None = None
) -> Corpus:
    """Return the corpus at these paths. Raises `SettingError` early if they are not a corpus."""
    if len(paths) == 1 and paths[0].is_dir():
        return _prepared_corpus(paths[0], split)
    if not 1 <= len(paths) <= 2:
        raise SettingError(f"an audit reads one file, or two for parallel texts, not {len(paths)}")
    for path in paths:
        _check_text_file(path)
    suffixes = {suffix for path in paths for suffix in path.suffixes}
    if fields or suffixes & {".jsonl", ".ndjson"}:
        if len(paths) > 1 or len(fields) > 2:
            raise SettingError("JSON Lines are one file with one field, or two for pairs")
        return Corpus(
            form="jsonl", paths=tuple(paths), name=paths[0].name, fields=tuple(fields) or ("text",)
        )
    name = paths[0].name
    if len(paths) == 2:
        name = split or "train"
    return Corpus(form="text", paths=tuple(paths), name=name)


def _prepared_corpus(path: Path, split: str | None) -> Corpus:
    """Return the corpus in a directory that `sonde prepare` wrote; without a split, its first."""
    directory = DataDirectory(path)
    name = split or next(iter(directory.splits))
    num_languages = len(directory.languages(name))
    if not 1 <= num_languages <= 2:
        raise SettingError(f"{path} has {num_languages} languages, not one or two")
    return Corpus(form="data", paths=(path,), name=name)


def _check_text_file(path: Path) -> None:
    """Raise if a file cannot be read, or is UTF-16."""
    try:
        with open_regular(path, follow=True) as file:
            start = file.read(2)
    except OSError as error:
        raise SettingError(f"{path} cannot be read", cause=error.strerror) from None
    if start in _UTF16:
        raise SettingError(
            f"{path} is UTF-16", hint=f"`iconv -f UTF-16 -t UTF-8 {path} > NEW` converts it"
        )


class Piece(NamedTuple):
    """A part of a corpus that has not been read yet."""

    read: Callable[[slice | Sequence[int]], list[TextEntry]]
    """Read its rows: those of a slice, or with these numbers. It can be sent to another process."""
    num_file_bytes: int
    """How many bytes of the corpus's files this piece covers."""
    is_streamed: bool = False
    """Whether it carries its bytes, because the files must be read from the start."""


def pieces_of(corpus: Corpus, piece_bytes: int) -> Iterator[Piece]:
    """Yield all pieces of a corpus, in order."""
    if corpus.form == "data":
        directory = DataDirectory(corpus.paths[0])
        files = [
            directory.tokens(corpus.name, language) for language in directory.languages(corpus.name)
        ]
        num = min(map(len, files))
        num_bytes = sum(tokens.flat.nbytes for tokens in files)
        read = functools.partial(_read_samples, str(corpus.paths[0].absolute()), corpus.name)
        step = max(int(piece_bytes * num / max(num_bytes, 1) / 2), 1)
        for start in range(0, num, step):
            samples = range(start, min(start + step, num))
            yield Piece(functools.partial(read, samples), num_bytes * len(samples) // num)
    elif len(corpus.paths) == 2:
        for sides, num_bytes in _side_by_side(corpus.paths, piece_bytes):
            yield Piece(functools.partial(_read_lines, sides), num_bytes, is_streamed=True)
    else:
        for block in cut_blocks(corpus.paths[0].absolute(), piece_bytes):
            read = functools.partial(_read_block, block, corpus.fields)
            yield Piece(read, block.num_file_bytes, is_streamed=block.content is not None)


def _read_block(
    block: TextBlock, fields: Sequence[str], wanted: slice | Sequence[int]
) -> list[TextEntry]:
    content = read_block(block)
    if not fields:
        return _read_lines([content], wanted)
    lines = content.removesuffix(b"\n").split(b"\n")
    return [_read_record(lines[number], fields) for number in _chosen(len(lines), wanted)]


def _read_lines(contents: Sequence[bytes], wanted: slice | Sequence[int]) -> list[TextEntry]:
    sides = [split_lines(content, _MAX_LINE_BYTES) for content in contents]
    numbers = _chosen(len(sides[0].lines), wanted)
    chosen = [[side.lines[number] for number in numbers] for side in sides]
    if len(sides) == 1:
        sizes = map(len, chosen[0])
    else:
        sizes = map(operator.add, *(map(len, side) for side in chosen))
    # Same as calling TextEntry(), in a third of the time; this dominates the cost of reading.
    fields = zip(itertools.repeat(True), zip(*chosen, strict=True), sizes, itertools.repeat(""))
    rows: list[TextEntry] = list(map(tuple.__new__, itertools.repeat(TextEntry), fields))
    faults: dict[int, str] = {}
    for side in sides:
        for line in np.flatnonzero(side.wrong).tolist():
            faults[line] = BAD_KINDS[side.wrong[line] - 1]
    if not faults:
        return rows
    for place, number in enumerate(numbers):
        if number in faults:
            kind = faults[number]
            rows[place] = rows[place]._replace(
                is_sample=False,
                texts=tuple(text[:_MAX_LINE_BYTES] for text in rows[place].texts),
                fault="" if kind == EMPTY else kind,
            )
    return rows


def _chosen(number: int, wanted: slice | Sequence[int]) -> Sequence[int]:
    return range(number)[wanted] if isinstance(wanted, slice) else wanted


def sample_of(corpus: Corpus, num: int) -> list[TextEntry]:
    """Return about `num` rows spread over the corpus; compressed and parallel files are sampled
    from their beginning only.
    """
    pieces = pieces_of(corpus, _PROBE_BYTES)
    first = next(pieces, None)
    if first is None:
        return []
    rows = first.read(slice(None))
    every = max(len(rows) * _NUM_PROBES // (2 * num), 1)
    rows = rows[::every]
    step = 1 if first.is_streamed else max(corpus.num_bytes // (_PROBE_BYTES * _NUM_PROBES), 1)
    for piece in itertools.islice(pieces, step - 1, step * _NUM_PROBES, step):
        rows += piece.read(slice(None, None, every))
    return rows[:: -(-len(rows) // num) or 1]


def _side_by_side(paths: Sequence[Path], piece_bytes: int) -> Iterator[tuple[list[bytes], int]]:
    """Yield the same number of lines from two files, and how many bytes they have."""
    pairs = list[tuple[bytes, ...]]()
    num_bytes = 0
    for number, pair in enumerate(
        itertools.zip_longest(*(_lines(path.absolute(), piece_bytes) for path in paths))
    ):
        if None in pair:
            longer, shorter = paths if pair[1] is None else paths[::-1]
            hint = "the texts of a pair have a line for each line of the other"
            raise SettingError(
                f"{longer} has more lines than {shorter}, which has {number:,}", hint=hint
            )
        pairs.append(pair)
        num_bytes += len(pair[0]) + len(pair[1]) + 2
        if num_bytes >= piece_bytes:
            yield _sides(pairs), num_bytes
            pairs = []
            num_bytes = 0
    if pairs:
        yield _sides(pairs), num_bytes


def _sides(pairs: Sequence[tuple[bytes, ...]]) -> list[bytes]:
    return [b"\n".join(side) + b"\n" for side in zip(*pairs, strict=True)]


def _lines(path: Path, piece_bytes: int) -> Iterator[bytes]:
    for block in cut_blocks(path, piece_bytes):
        yield from read_block(block).removesuffix(b"\n").split(b"\n")


def _read_record(line: bytes, fields: Sequence[str]) -> TextEntry:
    texts = list[str]()
    fault = ""
    try:
        record = orjson.loads(line)
    except ValueError:
        record = None
        fault = "it is no JSON"
    for name in fields:
        found = functools.reduce(
            lambda value, part: value.get(part) if isinstance(value, dict) else None,
            name.split("."),
            record,
        )
        if not isinstance(found, str):
            fault = fault or f"it has no text in a field {name!r}"
            texts = [line[:200].decode(errors="replace")] * len(fields)
            break
        texts.append(found[:_MAX_LINE_BYTES])
    return TextEntry(True, tuple(texts), len(line), fault)


def _read_samples(
    path: str, split: str, samples: range, wanted: slice | Sequence[int]
) -> list[TextEntry]:
    files = _opened(path, split)
    rows = list[TextEntry]()
    for place in _chosen(len(samples), wanted):
        number = samples[place]
        texts = tuple(
            tokenizer.decode(np.asarray(tokens[number])[:_MAX_LINE_BYTES])
            for tokens, tokenizer in files
        )
        rows.append(TextEntry(True, texts, sum(map(len, texts))))
    return rows


@functools.lru_cache(maxsize=2)
def _opened(path: str, split: str) -> list[tuple[TokenFile, Tokenizer]]:
    directory = DataDirectory(path)
    return [
        (directory.tokens(split, language), directory.tokenizer(language))
        for language in directory.languages(split)
    ]
