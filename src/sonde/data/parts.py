"""Encodes blocks of text into parts, one file each, in any worker, and merges the parts of a split into its token files.

The file name of a part is a digest of the text and of every setting that affects the result. So a restarted preparation
reuses finished parts, an edited corpus costs only its edited blocks, and two workers on the same block do no harm. A
part holds three arrays in numpy's format: tokens of each line (0: left out), what is wrong with each line (0: nothing,
else its 1-based place in BAD_KINDS), and the tokens as they will be in the `.bin`.

A line that is bad in one language is left out in all, so that pairs stay aligned. Merging holds the tokens of one part
at a time. Each file appears whole or not at all. The sidecar is written last, and until then the old one does not match
the new files, so no reader takes a mixture for a corpus.
"""

import functools
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sonde.data.mmididx import Layout, token_dtype, write_index
from sonde.data.text_blocks import BAD_KINDS, TextBlock, read_block, split_lines
from sonde.data.token_file import (
    Sidecar,
    TokenizerStamp,
    bin_path,
    index_path,
    line_starts,
    lines_path,
    stamp_file,
    write_sidecar,
)
from sonde.data.tokenizer import Tokenizer
from sonde.data.tokenizer_files import load_tokenizer, single_thread
from sonde.errors import SettingError
from sonde.fields import Positive, check_fields
from sonde.records.atomic import atomic_file, write_file
from sonde.records.files import open_regular
from sonde.records.values import encode

PARTS: Final = ".parts"
"""Folder of the parts in a data directory until they are merged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareSettings:
    """What to prepare, and how."""

    splits: Mapping[str, Mapping[str, Path]]
    """For each split (`train`, `valid`, …), the text of each language, source first."""
    out: Path
    """The data directory to write."""
    tokenizer: str = "bpe"
    """`bpe`, `unigram`, `word`, `bytes`, or a tokenizer file."""
    vocab_size: int | None = 10_000
    """Vocabulary size of a tokenizer trained here, including specials; None with `word` keeps every word."""
    layout: Layout = "fairseq"
    """Dialect of the index."""
    max_line_bytes: Positive = 1_000_000
    """Maximum length of a line in bytes."""
    block_bytes: Positive = 4 << 20
    """Bytes of text that a worker takes at once."""

    def __post_init__(self) -> None:
        if not self.splits or not all(self.splits.values()):
            raise SettingError("there is nothing to prepare", hint="give at least --train FILE")
        languages = {tuple(texts) for texts in self.splits.values()}
        if len(languages) > 1:
            raise SettingError(f"the splits have different languages: {sorted(languages)}")
        if sum(str(path) == "-" for texts in self.splits.values() for path in texts.values()) > 1:
            raise SettingError("standard input can be only one of the texts")
        check_fields(self)


class Part(NamedTuple):
    """A finished part."""

    path: Path
    """The file of the part."""
    num_file_bytes: int
    """Bytes of the text file that it covers."""
    reused: bool
    """Whether it already existed."""


class BadLine(NamedTuple):
    """A line with a problem."""

    source: str
    """The text file."""
    line: int
    """The line number, starting at 1."""
    kind: str
    """One of BAD_KINDS."""


def make_part(block: TextBlock, settings: PrepareSettings, stamp: TokenizerStamp) -> Part:
    """Encode one block with the stamped tokenizer, whose file is in `settings.out`, unless its part already exists."""
    content = read_block(block)
    dtype = token_dtype(stamp.vocab_size, settings.layout)
    digest = hashlib.sha256(encode([stamp.digest, dtype.str, settings.max_line_bytes]) + content)
    path = settings.out / PARTS / f"{digest.hexdigest()[:40]}.part"
    reused = path.exists()
    if not reused:
        tokenizer = _tokenizer(settings.out / stamp.file, stamp.digest)
        _write_part(path, content, settings, tokenizer, dtype)
    return Part(path, block.num_file_bytes, reused)


def merge_split(
    split: str,
    sources: Mapping[str, str],
    parts: Mapping[str, Sequence[Part]],
    settings: PrepareSettings,
    stamp: TokenizerStamp,
) -> tuple[list[Sidecar], list[BadLine]]:
    """Merge the parts of one split. `sources` and `parts` are keyed by language, source language first."""
    nothing = np.zeros(0, np.uint8)
    wrong = {
        language: np.concatenate([nothing, *(_read_part(part, 2)[1] for part in parts[language])]) for language in parts
    }
    if len({len(kinds) for kinds in wrong.values()}) > 1:
        raise SettingError(
            "parallel files have different numbers of lines",
            cause="; ".join(f"{sources[name]} ends after line {len(kinds)}" for name, kinds in wrong.items()),
            hint="line N of one must be the translation of line N of the other",
        )
    bad = [
        BadLine(sources[language], line + 1, BAD_KINDS[kinds[line] - 1])
        for language, kinds in wrong.items()
        for line in np.flatnonzero(kinds).tolist()
    ]
    # The worst kind is the lowest number above 0; subtracting one makes 0 the highest.
    worst = np.minimum.reduce([kinds - np.uint8(1) for kinds in wrong.values()]) + np.uint8(1)
    counts = np.bincount(worst, minlength=len(BAD_KINDS) + 1).tolist()
    sidecars = []
    for language in parts:
        prefix = settings.out / f"{split}.{language}"
        num_tokens = _write_tokens(prefix, parts[language], worst == 0, settings.layout, stamp.vocab_size)
        sidecar = Sidecar(
            split=split,
            language=language,
            languages=tuple(parts),
            num_samples=counts[0],
            num_tokens=num_tokens,
            source=sources[language],
            num_source_lines=len(worst),
            left_out=dict(zip(BAD_KINDS, counts[1:], strict=True)),
            tokenizer=stamp,
            bin=stamp_file(bin_path(prefix)),
            idx=stamp_file(index_path(prefix)),
            lines=stamp_file(lines_path(prefix)),
        )
        write_sidecar(prefix, sidecar)
        sidecars.append(sidecar)
    return sidecars, bad


def _write_part(
    path: Path, content: bytes, settings: PrepareSettings, tokenizer: Tokenizer, dtype: np.dtype[np.generic]
) -> None:
    lines, bad = split_lines(content, settings.max_line_bytes)
    wrong = np.zeros(len(lines), np.uint8)
    for number, kind in enumerate(BAD_KINDS, 1):
        wrong[bad[kind]] = number
    good = np.flatnonzero(wrong == 0)
    with single_thread():
        encoded = tokenizer.encode_batch(lines if len(good) == len(lines) else [lines[number] for number in good])
    sizes = np.zeros(len(lines), np.int32)
    sizes[good] = encoded.sizes
    arrays = io.BytesIO()
    for array in (sizes, wrong, encoded.tokens.astype(dtype)):
        np.save(arrays, array, allow_pickle=False)
    write_file(path, arrays.getvalue())


def _read_part(part: Part, num_arrays: int = 3) -> list[NDArray[Any]]:
    with open_regular(part.path) as file:
        return [np.load(file, allow_pickle=False) for _ in range(num_arrays)]


def _write_tokens(prefix: Path, parts: Sequence[Part], kept: NDArray[np.bool_], layout: Layout, vocab_size: int) -> int:
    all_sizes = []
    num_tokens = at = 0
    with atomic_file(bin_path(prefix)) as file:
        for part in parts:
            sizes, _, tokens = _read_part(part)
            here = kept[at : at + len(sizes)]
            at += len(sizes)
            tokens = tokens[np.repeat(here, sizes)]
            num_tokens += len(tokens)
            file.write(tokens.tobytes())
            all_sizes.append(sizes[here])
    with atomic_file(index_path(prefix)) as file:
        dtype = token_dtype(vocab_size, layout)
        write_index(file, all_sizes, num_samples=int(kept.sum()), dtype=dtype, layout=layout)
    lines = io.BytesIO()
    np.save(lines, line_starts(np.flatnonzero(~kept)), allow_pickle=False)
    write_file(lines_path(prefix), lines.getvalue())
    return num_tokens


@functools.lru_cache(maxsize=2)
def _tokenizer(path: Path, digest: str) -> Tokenizer:
    return load_tokenizer(path, digest=digest)
