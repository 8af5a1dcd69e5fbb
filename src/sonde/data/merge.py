"""Parts into one `.bin`, `.idx`, line map and sidecar a language: the end of the road.

A line that is bad in one language is left out in all, so that pairs stay pairs. Memory holds one part at a time. Each file
appears whole or not at all; the sidecar comes last, and until it does the old one does not fit the new files, so that no
reader takes a mixture for a corpus.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from sonde.data.mmididx import Layout, write_index
from sonde.data.part import Part, read_part, read_sizes
from sonde.data.sidecar import Sidecar, TokenizerStamp, line_starts, lines_path, stamp_file, write_sidecar
from sonde.data.text_blocks import BAD_KINDS
from sonde.data.token_file import bin_path, index_path
from sonde.errors import SettingError
from sonde.records.atomic import atomic_file, write_file


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class MergeSettings:
    """What all languages of a data directory have in common."""

    out: Path
    """The data directory."""
    dtype: np.dtype[np.generic]
    """Type of a token."""
    layout: Layout
    """Dialect of the index."""
    keep_bad_lines: bool
    """Whether bad lines become samples."""
    tokenizer: TokenizerStamp
    """What made the tokens."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class BadLine:
    """A line that something is wrong with."""

    source: str
    """The text."""
    line: int
    """Its number, from 1."""
    kind: str
    """One of BAD_KINDS."""


def check_parallel(lengths: Mapping[str, int]) -> None:
    """Raise SettingError when texts that should be parallel are not, saying where each ends."""
    if len(set(lengths.values())) > 1:
        raise SettingError(
            "parallel files have different numbers of lines",
            cause="; ".join(f"{path} ends after line {length}" for path, length in lengths.items()),
            hint="line N of one must be the translation of line N of the other",
        )


def merge_split(
    split: str, sources: Mapping[str, str], parts: Mapping[str, Sequence[Part]], settings: MergeSettings
) -> tuple[list[Sidecar], list[BadLine]]:
    """Merge the parts of one split. `sources` and `parts` are by language; source language first."""
    lengths = {language: sum(part.num_lines for part in parts[language]) for language in parts}
    check_parallel({sources[language]: length for language, length in lengths.items()})
    bad = [line for language in parts for line in _bad_lines(sources[language], parts[language], settings.dtype)]
    by_line: dict[int, str] = {}
    if not settings.keep_bad_lines:
        for entry in sorted(bad, key=lambda line: BAD_KINDS.index(line.kind), reverse=True):
            by_line[entry.line - 1] = entry.kind
    left_out = np.array(sorted(by_line), np.int64)
    sidecars = []
    for language in parts:
        prefix = settings.out / f"{split}.{language}"
        kept = _KeptParts(parts[language], settings.dtype, left_out)
        num_tokens = _write_tokens(prefix, kept, lengths[language] - len(left_out), settings)
        sidecar = Sidecar(
            split=split,
            language=language,
            languages=tuple(parts),
            num_samples=lengths[language] - len(left_out),
            num_tokens=num_tokens,
            source=sources[language],
            num_source_lines=lengths[language],
            left_out={kind: sum(found == kind for found in by_line.values()) for kind in BAD_KINDS},
            tokenizer=settings.tokenizer,
            bin=stamp_file(bin_path(prefix)),
            idx=stamp_file(index_path(prefix)),
            lines=stamp_file(lines_path(prefix)),
        )
        write_sidecar(prefix, sidecar)
        sidecars.append(sidecar)
    return sidecars, bad


def _write_tokens(prefix: Path, kept: "_KeptParts", num_samples: int, settings: MergeSettings) -> int:
    num_tokens = 0
    with atomic_file(bin_path(prefix)) as file:
        for tokens in kept.tokens():
            num_tokens += len(tokens)
            file.write(tokens.tobytes())
    with atomic_file(index_path(prefix)) as file:
        write_index(file, kept, num_samples=num_samples, dtype=settings.dtype, layout=settings.layout)
    lines = io.BytesIO()
    np.save(lines, line_starts(kept.left_out), allow_pickle=False)
    write_file(lines_path(prefix), lines.getvalue())
    return num_tokens


def _bad_lines(source: str, parts: Sequence[Part], dtype: np.dtype[np.generic]) -> Iterator[BadLine]:
    first = 0
    for part in parts:
        if any(part.num_bad.values()):
            for kind, lines in read_part(part.path, dtype).bad.items():
                for line in lines.tolist():
                    yield BadLine(source=source, line=first + line + 1, kind=kind)
        first += part.num_lines


@final
class _KeptParts:
    """The parts of one language without the lines that are left out; can be gone through more than once."""

    def __init__(self, parts: Sequence[Part], dtype: np.dtype[np.generic], left_out: NDArray[np.int64]) -> None:
        self.left_out = left_out
        self._parts = parts
        self._dtype = dtype

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        """Sizes, part by part."""
        for part, kept in self._masks():
            sizes = read_sizes(part.path)
            yield sizes if kept is None else sizes[kept]

    def tokens(self) -> Iterator[NDArray[np.generic]]:
        """Tokens, part by part."""
        for part, kept in self._masks():
            sizes, _, tokens = read_part(part.path, self._dtype)
            yield tokens if kept is None else tokens[np.repeat(kept, sizes)]

    def _masks(self) -> Iterator[tuple[Part, NDArray[np.bool_] | None]]:
        """Which lines of each part are kept; None is all."""
        first = 0
        for part in self._parts:
            low, high = np.searchsorted(self.left_out, [first, first + part.num_lines])
            kept = None
            if low < high:
                kept = np.ones(part.num_lines, np.bool_)
                kept[self.left_out[low:high] - first] = False
            yield part, kept
            first += part.num_lines
