"""`prepare`: turns text files into a data directory.

    texts ──cut at line ends──> blocks ──workers──> parts ──in order──> merge ──> train.en.bin, .idx, …
                └────some or all of them──> tokenizer, unless it is given  ┘

The result depends only on the text and the settings, byte for byte, not on the number of workers or on how often the
preparation was interrupted. Parts are stored in `OUT/.parts` until everything is merged.

A word dictionary counts all of the text, block by block, in the workers. BPE and unigram train on a bounded sample: if
the text has more than 256 MB, every second block is dropped, then every second of the rest, and so on. The trained file
is cached beside the parts under a digest of its text, so a restarted preparation need not train again.
"""

import errno
import functools
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sonde.data.parts import PARTS, BadLine, Part, PrepareSettings, make_part, merge_split
from sonde.data.text_blocks import TextBlock, cut_blocks, first_bytes, in_order, read_block, split_lines
from sonde.data.token_file import Sidecar, TokenizerStamp, read_sidecar, stamp_tokenizer
from sonde.data.tokenizer import BytesTokenizer, Tokenizer, count_words, dictionary_of_counts
from sonde.data.tokenizer_files import TRAINED, load_tokenizer, train_subwords
from sonde.errors import SettingError, SondeError
from sonde.records import disk
from sonde.records.atomic import atomic_file, sweep_temporaries, write_file

_BAD_LINES: Final = "bad-lines.txt"
SAMPLE_BYTES: Final = 256_000_000
_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Progress of a preparation."""

    stage: str
    """`vocabulary`, `encode` or `merge`."""
    name: str
    """The file being processed."""
    num_done_bytes: int
    """Bytes of text files processed in this stage."""
    num_total_bytes: int
    """Bytes of all text files."""


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
    tokenizer: TokenizerStamp = field(repr=False)
    """The tokenizer of the data."""


def prepare(
    settings: PrepareSettings,
    *,
    executor: Executor | None = None,
    num_under_way: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> Prepared:
    """Prepare a data directory, in this process or with any executor."""
    try:
        return _Preparation(settings, executor, num_under_way, on_progress).run()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SondeError(
            f"cannot write to {settings.out}" if full else f"preparing {settings.out} failed",
            cause=f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}",
            hint="no half-written file is left; make room and run the same command: it goes on where it stopped"
            if full
            else "the parts that are done are kept: run the same command again",
        ) from error


@dataclass(slots=True)
class _Preparation:
    """One call of `prepare`."""

    settings: PrepareSettings
    executor: Executor | None
    num_under_way: int
    on_progress: Callable[[Progress], None] | None
    num_total_bytes: int = 0
    num_done_bytes: int = 0

    @property
    def parts_directory(self) -> Path:
        return self.settings.out / PARTS

    def run(self) -> Prepared:
        """Run all stages in order."""
        settings = self.settings
        for path in (path for texts in settings.splits.values() for path in texts.values() if str(path) != "-"):
            first_bytes(path)
        disk.make_directories(self.parts_directory)
        for directory in (settings.out, self.parts_directory):
            sweep_temporaries(directory)
        splits = self._read_texts()
        self.num_total_bytes = sum(text.stat().st_size for texts in splits.values() for text in texts.values())
        stamp = self._write_tokenizer(self._make_tokenizer(self._training_blocks(splits)))
        # Workers may run in another directory.
        encode = functools.partial(make_part, settings=replace(settings, out=settings.out.absolute()), stamp=stamp)
        parts = {split: self._make_parts(split, texts, encode) for split, texts in splits.items()}
        sidecars: list[Sidecar] = []
        bad: list[BadLine] = []
        for split, by_language in parts.items():
            self._report("merge", split, self.num_done_bytes)
            texts = {language: str(path) for language, path in settings.splits[split].items()}
            sources = {name: "standard input" if text == "-" else text for name, text in texts.items()}
            done, found = merge_split(split, sources, by_language, settings, stamp)
            sidecars += done
            bad += found
        (settings.out / _BAD_LINES).unlink(missing_ok=True)
        if bad:
            told = "".join(f"{line.source}:{line.line}: {line.kind}\n" for line in bad)
            write_file(settings.out / _BAD_LINES, told.encode())
        shutil.rmtree(self.parts_directory, ignore_errors=True)
        everything = [part for by_language in parts.values() for rows in by_language.values() for part in rows]
        return Prepared(
            sidecars=tuple(sidecars),
            bad_lines=tuple(bad),
            num_parts=len(everything),
            num_reused_parts=sum(part.reused for part in everything),
            tokenizer=stamp,
        )

    def _read_texts(self) -> dict[str, dict[str, Path]]:
        """Return the texts as files, with standard input saved to one."""
        return {
            split: {name: self._spool() if str(path) == "-" else path for name, path in texts.items()}
            for split, texts in self.settings.splits.items()
        }

    def _spool(self) -> Path:
        spooled = self.parts_directory / "stdin"
        with open(0, "rb", closefd=False) as source, atomic_file(spooled) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        return spooled

    def _training_blocks(self, splits: Mapping[str, Mapping[str, Path]]) -> Iterator[TextBlock]:
        done = 0
        for path in next(iter(splits.values())).values():
            for block in cut_blocks(path, self.settings.block_bytes):
                done += block.num_file_bytes
                self._report("vocabulary", path.name, done)
                yield block

    def _make_tokenizer(self, blocks: Iterator[TextBlock]) -> Tokenizer:
        choice, vocab_size = self.settings.tokenizer, self.settings.vocab_size
        if choice == "bytes":
            return BytesTokenizer()
        if choice not in TRAINED:
            return load_tokenizer(choice)
        if choice == "word":
            counts: Counter[str] = Counter()
            for found in in_order(self.executor, _count_block, blocks, num_under_way=self.num_under_way):
                counts.update(found)
            return dictionary_of_counts(counts, vocab_size)
        if vocab_size is None:
            raise SettingError(f"{choice} needs a vocabulary size", hint="--vocab-size 10000, for instance")
        sample = sample_blocks(blocks, SAMPLE_BYTES)
        digest = hashlib.sha256(f"{choice} {vocab_size}\n".encode())
        for content in sample:
            digest.update(content)
        trained = self.parts_directory / f"{digest.hexdigest()[:40]}.json"
        if not trained.exists():
            lines = (split_lines(content, _NO_LIMIT).lines for content in sample)
            write_file(trained, train_subwords(choice, lines, vocab_size).payload)
        return load_tokenizer(trained)

    def _write_tokenizer(self, tokenizer: Tokenizer) -> TokenizerStamp:
        stamp = stamp_tokenizer(tokenizer, tokenizer.file_name)
        out = self.settings.out
        for index in sorted(out.glob("*.idx")):
            sidecar = read_sidecar(index.with_suffix(""))
            if sidecar and sidecar.split not in self.settings.splits and sidecar.tokenizer.digest != stamp.digest:
                raise SettingError(
                    f"{out} already holds {index.stem}, made with another tokenizer",
                    hint="a data directory has one tokenizer: choose another --out, or give "
                    f"--tokenizer {out / sidecar.tokenizer.file}",
                )
        write_file(out / tokenizer.file_name, tokenizer.payload)
        return stamp

    def _make_parts(
        self, split: str, texts: Mapping[str, Path], encode: Callable[[TextBlock], Part]
    ) -> dict[str, Sequence[Part]]:
        made: dict[str, Sequence[Part]] = {}
        for language, path in texts.items():
            parts: list[Part] = []
            blocks = cut_blocks(path.absolute(), self.settings.block_bytes)
            for part in in_order(self.executor, encode, blocks, num_under_way=self.num_under_way):
                parts.append(part)
                self.num_done_bytes += part.num_file_bytes
                self._report("encode", f"{split}.{language}", self.num_done_bytes)
            made[language] = parts
        return made

    def _report(self, stage: str, name: str, num_done_bytes: int) -> None:
        if self.on_progress:
            self.on_progress(
                Progress(stage=stage, name=name, num_done_bytes=num_done_bytes, num_total_bytes=self.num_total_bytes)
            )


def _count_block(block: TextBlock) -> Counter[str]:
    return count_words(split_lines(read_block(block), _NO_LIMIT).lines)


def sample_blocks(blocks: Iterable[TextBlock], max_bytes: int) -> list[bytes]:
    """Return all blocks if they have at most `max_bytes`, otherwise every second, fourth, … block."""
    kept: list[bytes] = []
    stride, num_bytes = 1, 0
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
