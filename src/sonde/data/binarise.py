"""`prepare`: turns text files into a data directory.

    texts ──cut at line ends──> blocks ──workers──> parts ──in order──> merge ──> train.en.bin,
        .idx, …
                └────some or all of them──> tokenizer, unless it is given  ┘

The result depends only on the text and the settings, byte for byte, not on the number of workers or
on how often the preparation was interrupted.

A word dictionary counts all of the text, block by block, in the workers. BPE and unigram train on a
bounded sample: if the text has more than 256 MB, every second block is dropped, then every second
of the rest, and so on. The trained file is cached beside the parts under a digest of its text, so a
restarted preparation need not train again.

A part is an encoded block, one file in `OUT/.parts` until everything is merged. Its name is a
digest of the text and of every setting that affects the result. So a restarted preparation reuses
finished parts, an edited corpus costs only its edited blocks, and two workers on the same block do
no harm. A part holds three arrays in numpy's format: tokens of each line (0: left out), what is
wrong with each line (0: nothing, else its 1-based place in BAD_KINDS), and the tokens as they will
be in the `.bin`.

A line that is bad in one language is left out in all, so that pairs stay aligned. Merging holds the
tokens of one part at a time. Each file appears whole or not at all. The sidecar is written last,
and until then the old one does not match the new files, so no reader takes a mixture for a corpus.
"""

import functools
import hashlib
import io
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sonde.data.mmididx import Layout, token_dtype, write_index
from sonde.data.text_blocks import (
    BAD_KINDS,
    TextBlock,
    cut_blocks,
    first_bytes,
    in_order,
    read_block,
    split_lines,
)
from sonde.data.token_file import (
    Sidecar,
    TokenizerStamp,
    beside,
    line_starts,
    read_sidecar,
    stamp_file,
    stamp_tokenizer,
    write_sidecar,
)
from sonde.data.tokenizer import BytesTokenizer, Tokenizer, dictionary_of_counts
from sonde.data.tokenizer_files import TRAINED, load_tokenizer, single_thread, train_subwords
from sonde.errors import SettingError, SondeError
from sonde.fields import Positive, check_fields
from sonde.records import disk
from sonde.records.files import atomic_file, open_regular, sweep_temporaries, write_file
from sonde.records.values import encode

_BAD_LINES: Final = "bad-lines.txt"
_PARTS: Final = ".parts"
SAMPLE_BYTES: Final = 256_000_000
_NO_LIMIT: Final = 1 << 62


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
    """Vocabulary size of a tokenizer trained here, including specials; None with `word` keeps every
    word.
    """
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


OnProgress: TypeAlias = Callable[[str, str, int, int], object]
"""Called with the stage (`vocabulary`, `encode` or `merge`), the file, and the bytes of text done
and in all.
"""


class BadLine(NamedTuple):
    """A line with a problem."""

    source: str
    """The text file."""
    line: int
    """The line number, starting at 1."""
    kind: str
    """One of BAD_KINDS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The result of a preparation."""

    sidecars: tuple[Sidecar, ...]
    """One sidecar for each split and language."""
    bad_lines: tuple[BadLine, ...]
    """Every bad line, with its file and number."""
    num_parts: int
    """Number of parts that the work was split into."""
    num_reused_parts: int
    """Number of parts that an earlier run had already finished."""


def prepare(
    settings: PrepareSettings,
    *,
    executor: Executor | None = None,
    num_under_way: int = 1,
    on_progress: OnProgress | None = None,
) -> Prepared:
    """Prepare a data directory, in this process or with any executor.

    ```python
    from pathlib import Path

    from sonde.data import PrepareSettings, prepare

    Path("corpus.txt").write_text("a few words\\n" * 200)
    splits = {"train": {"en": Path("corpus.txt")}}
    prepare(PrepareSettings(splits=splits, out=Path("data"), tokenizer="bytes"))
    ```
    """
    try:
        return _Preparation(settings, executor, num_under_way, on_progress).run()
    except OSError as error:
        raise SondeError(
            f"preparing {settings.out} failed",
            cause=str(error),
            hint=(
                "no half-written file is left; make room if the disk is full, and run the same"
                " command: it goes on where it stopped"
            ),
        ) from error


class Part(NamedTuple):
    """A finished part."""

    path: Path
    """The file of the part."""
    reused: bool
    """Whether it already existed."""


@dataclass(slots=True)
class _Preparation:
    """One call of `prepare`."""

    settings: PrepareSettings
    executor: Executor | None
    num_under_way: int
    on_progress: OnProgress | None
    num_total_bytes: int = 0
    num_done_bytes: int = 0

    def run(self) -> Prepared:
        """Run all stages in order."""
        settings = self.settings
        self._check_inputs()
        disk.make_directories(self._parts_directory)
        for directory in (settings.out, self._parts_directory):
            sweep_temporaries(directory)
        files = {split: self._as_files(texts) for split, texts in settings.splits.items()}
        self.num_total_bytes = _num_bytes(files)
        stamp = self._write_tokenizer(self._make_tokenizer(next(iter(files.values()))))
        self.num_done_bytes = 0
        parts = self._encode(files, stamp)
        sidecars: list[Sidecar] = []
        bad_lines: list[BadLine] = []
        for split, parts_of_split in parts.items():
            self._report("merge", split)
            merged, bad_of_split = merge_split(split, parts_of_split, settings, stamp)
            sidecars += merged
            bad_lines += bad_of_split
        self._write_bad_lines(bad_lines)
        shutil.rmtree(self._parts_directory, ignore_errors=True)
        all_parts = [
            part
            for parts_of_split in parts.values()
            for parts_of_text in parts_of_split.values()
            for part in parts_of_text
        ]
        return Prepared(
            sidecars=tuple(sidecars),
            bad_lines=tuple(bad_lines),
            num_parts=len(all_parts),
            num_reused_parts=sum(part.reused for part in all_parts),
        )

    @property
    def _parts_directory(self) -> Path:
        return self.settings.out / _PARTS

    def _check_inputs(self) -> None:
        """Raise if a file to prepare cannot be read, before anything is written."""
        for texts in self.settings.splits.values():
            for path in texts.values():
                if str(path) != "-":
                    first_bytes(path)

    def _encode(
        self, files: Mapping[str, Mapping[str, Path]], stamp: TokenizerStamp
    ) -> dict[str, dict[str, list[Part]]]:
        """Encode every text in parts. Return the parts by split and language."""
        # Workers may run in another directory.
        settings = replace(self.settings, out=self.settings.out.absolute())
        encode_block = functools.partial(make_part, settings=settings, stamp=stamp)
        parts: dict[str, dict[str, list[Part]]] = {}
        for split, texts in files.items():
            parts[split] = {}
            for language, path in texts.items():
                blocks = self._blocks("encode", f"{split}.{language}", path)
                encoded = in_order(
                    self.executor, encode_block, blocks, num_under_way=self.num_under_way
                )
                parts[split][language] = list(encoded)
        return parts

    def _write_bad_lines(self, bad_lines: Sequence[BadLine]) -> None:
        """Write the list of bad lines in place of an earlier one; no file if there are none."""
        path = self.settings.out / _BAD_LINES
        path.unlink(missing_ok=True)
        if bad_lines:
            listed = "".join(f"{bad.source}:{bad.line}: {bad.kind}\n" for bad in bad_lines)
            write_file(path, listed.encode())

    def _as_files(self, texts: Mapping[str, Path]) -> dict[str, Path]:
        """Return the texts with standard input saved to a file."""
        files = {language: path.absolute() for language, path in texts.items()}
        for language, path in texts.items():
            if str(path) == "-":
                files[language] = (self.settings.out / _PARTS / "stdin").absolute()
                with open(0, "rb", closefd=False) as source, atomic_file(files[language]) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        return files

    def _make_tokenizer(self, texts: Mapping[str, Path]) -> Tokenizer:
        choice = self.settings.tokenizer
        vocab_size = self.settings.vocab_size
        if choice == "bytes":
            return BytesTokenizer()
        if choice not in TRAINED:
            return load_tokenizer(choice)
        blocks = (
            block
            for path in texts.values()
            for block in self._blocks("vocabulary", path.name, path)
        )
        if choice == "word":
            counts: Counter[str] = Counter()
            for found in in_order(
                self.executor, _count_block, blocks, num_under_way=self.num_under_way
            ):
                counts.update(found)
            return dictionary_of_counts(counts, vocab_size)
        if vocab_size is None:
            raise SettingError(
                f"{choice} needs a vocabulary size", hint="--vocab-size 10000, for instance"
            )
        sample = sample_blocks(blocks, SAMPLE_BYTES)
        digest = hashlib.sha256(f"{choice} {vocab_size}\n".encode())
        for content in sample:
            digest.update(content)
        trained = self.settings.out / _PARTS / f"{digest.hexdigest()[:40]}.json"
        if not trained.exists():
            lines = (split_lines(content, _NO_LIMIT).lines for content in sample)
            write_file(trained, train_subwords(choice, lines, vocab_size).payload)
        return load_tokenizer(trained)

    def _write_tokenizer(self, tokenizer: Tokenizer) -> TokenizerStamp:
        stamp = stamp_tokenizer(tokenizer, tokenizer.file_name)
        out = self.settings.out
        for index in sorted(out.glob("*.idx")):
            sidecar = read_sidecar(index.with_suffix(""))
            if (
                sidecar
                and sidecar.split not in self.settings.splits
                and sidecar.tokenizer.digest != stamp.digest
            ):
                raise SettingError(
                    f"{out} already holds {index.stem}, made with another tokenizer",
                    hint=(
                        "a data directory has one tokenizer: choose another --out, or give "
                        f"--tokenizer {out / sidecar.tokenizer.file}"
                    ),
                )
        write_file(out / tokenizer.file_name, tokenizer.payload)
        return stamp

    def _blocks(self, stage: str, name: str, path: Path) -> Iterator[TextBlock]:
        for block in cut_blocks(path, self.settings.block_bytes):
            yield block
            self.num_done_bytes += block.num_file_bytes
            self._report(stage, name)

    def _report(self, stage: str, name: str) -> None:
        if self.on_progress:
            self.on_progress(stage, name, self.num_done_bytes, self.num_total_bytes)


def _num_bytes(files: Mapping[str, Mapping[str, Path]]) -> int:
    return sum(path.stat().st_size for texts in files.values() for path in texts.values())


def _count_block(block: TextBlock) -> Counter[str]:
    return Counter("\n".join(split_lines(read_block(block), _NO_LIMIT).lines).split())


def sample_blocks(blocks: Iterable[TextBlock], max_bytes: int) -> list[bytes]:
    """Return all blocks if they have at most `max_bytes`, otherwise every second, fourth, …
    block.
    """
    kept: list[bytes] = []
    stride = 1
    num_bytes = 0
    for number, block in enumerate(blocks):
        if number % stride:
            continue
        content = read_block(block)
        kept.append(content)
        num_bytes += len(content)
        while num_bytes > max_bytes and len(kept) > 1:
            kept = kept[::2]
            stride *= 2
            num_bytes = sum(map(len, kept))
    return kept


def make_part(block: TextBlock, settings: PrepareSettings, stamp: TokenizerStamp) -> Part:
    """Encode one block with the stamped tokenizer, whose file is in `settings.out`, unless its part
    already exists.
    """
    content = read_block(block)
    dtype = token_dtype(stamp.vocab_size, settings.layout)
    digest = hashlib.sha256(encode([stamp.digest, dtype.str, settings.max_line_bytes]) + content)
    path = settings.out / _PARTS / f"{digest.hexdigest()[:40]}.part"
    if path.exists():
        return Part(path, reused=True)
    lines, wrong = split_lines(content, settings.max_line_bytes)
    is_good = wrong == 0
    with single_thread():
        tokenizer = _tokenizer(settings.out / stamp.file, stamp.digest)
        encoded = tokenizer.encode_batch(list(itertools.compress(lines, is_good)))
    sizes = np.zeros(len(lines), np.int32)
    sizes[is_good] = encoded.sizes
    _save(path, sizes, wrong, encoded.tokens.astype(dtype))
    return Part(path, reused=False)


@functools.lru_cache(maxsize=2)
def _tokenizer(path: Path, digest: str) -> Tokenizer:
    return load_tokenizer(path, digest=digest)


def _save(path: Path, *arrays: NDArray[Any]) -> None:
    content = io.BytesIO()
    for array in arrays:
        np.save(content, array, allow_pickle=False)
    write_file(path, content.getvalue())


def _read_part(part: Part, num_arrays: int = 3) -> list[NDArray[Any]]:
    with open_regular(part.path) as file:
        return [np.load(file, allow_pickle=False) for _ in range(num_arrays)]


def merge_split(
    split: str,
    parts: Mapping[str, Sequence[Part]],
    settings: PrepareSettings,
    stamp: TokenizerStamp,
) -> tuple[list[Sidecar], list[BadLine]]:
    """Merge the parts of one split, which are keyed by language, source language first."""
    texts = {language: str(path) for language, path in settings.splits[split].items()}
    sources = {
        language: "standard input" if text == "-" else text for language, text in texts.items()
    }
    wrong: dict[str, NDArray[np.uint8]] = {}
    for language, parts_of_text in parts.items():
        kinds_of_parts = [_read_part(part, 2)[1] for part in parts_of_text]
        wrong[language] = np.concatenate([np.zeros(0, np.uint8), *kinds_of_parts])
    if len({len(kinds) for kinds in wrong.values()}) > 1:
        raise SettingError(
            "parallel files have different numbers of lines",
            cause="; ".join(
                f"{sources[name]} ends after line {len(kinds)}" for name, kinds in wrong.items()
            ),
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
        num_tokens = _write_tokens(
            prefix, parts[language], worst == 0, settings.layout, stamp.vocab_size
        )
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
            bin=stamp_file(beside(prefix, ".bin")),
            idx=stamp_file(beside(prefix, ".idx")),
            lines=stamp_file(beside(prefix, ".lines.npy")),
        )
        write_sidecar(prefix, sidecar)
        sidecars.append(sidecar)
    return sidecars, bad


def _write_tokens(
    prefix: Path, parts: Sequence[Part], kept: NDArray[np.bool_], layout: Layout, vocab_size: int
) -> int:
    all_sizes = []
    num_tokens = at = 0
    with atomic_file(beside(prefix, ".bin")) as file:
        for part in parts:
            sizes, _, tokens = _read_part(part)
            here = kept[at : at + len(sizes)]
            at += len(sizes)
            tokens = tokens[np.repeat(here, sizes)]
            num_tokens += len(tokens)
            file.write(tokens.tobytes())
            all_sizes.append(sizes[here])
    with atomic_file(beside(prefix, ".idx")) as file:
        dtype = token_dtype(vocab_size, layout)
        write_index(file, all_sizes, dtype=dtype, layout=layout)
    _save(beside(prefix, ".lines.npy"), line_starts(np.flatnonzero(~kept)))
    return num_tokens
