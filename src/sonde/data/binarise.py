"""`prepare`: turns text files into a data directory.

    texts ──cut at line ends──> blocks ──workers──> parts ──in order──> merge ──> train.en.bin, .idx, …
                └────some or all of them──> tokenizer, unless it is given  ┘

The result depends only on the text and the settings, byte for byte, not on the number of workers or on how often the
preparation was interrupted. Parts are stored in `OUT/.parts` until everything is merged.
"""

import errno
import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final

from sonde.data.parts import PARTS, BadLine, Part, PrepareSettings, check_parallel, make_part, merge_split
from sonde.data.text_blocks import TextBlock, count_lines, cut_blocks, first_bytes, in_order
from sonde.data.token_file import Sidecar, TokenizerStamp, read_sidecar, stamp_tokenizer
from sonde.data.tokenizer import Tokenizer
from sonde.data.tokenizer_files import make_tokenizer
from sonde.errors import SettingError, SondeError
from sonde.records import disk
from sonde.records.atomic import atomic_file, sweep_temporaries, write_file

_BAD_LINES: Final = "bad-lines.txt"


@final
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


@final
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


@final
class _Preparation:
    """One call of `prepare`."""

    def __init__(
        self,
        settings: PrepareSettings,
        executor: Executor | None,
        num_under_way: int,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.settings = settings
        self.executor = executor
        self.num_under_way = num_under_way
        self.on_progress = on_progress
        self.parts_directory = settings.out / PARTS
        self.num_total_bytes = 0
        self.num_done_bytes = 0

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
        tokenizer = make_tokenizer(
            settings.tokenizer,
            settings.vocab_size,
            self._training_blocks(splits),
            executor=self.executor,
            num_under_way=self.num_under_way,
            cache=self.parts_directory,
        )
        stamp = self._write_tokenizer(tokenizer)
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
        """Return the texts as files, with standard input saved to one. Raises if parallel texts differ in length."""
        splits: dict[str, dict[str, Path]] = {}
        for split, texts in self.settings.splits.items():
            files = {name: self._spool() if str(path) == "-" else path for name, path in texts.items()}
            counts = {str(path): count_lines(path) for path in files.values()} if len(files) > 1 else {}
            check_parallel({path: count for path, count in counts.items() if count is not None})
            splits[split] = files
        return splits

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
