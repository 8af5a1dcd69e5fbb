"""`sonde prepare`: turn text files into a data directory. Shows a progress bar on a terminal and plain lines in logs."""

import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, final

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from sonde.cli.terminal import picked, print_rows, screen
from sonde.data.binarise import Prepared, Progress
from sonde.data.binarise import prepare as prepare_data
from sonde.data.directory import DataDirectory, link_fairseq_names
from sonde.data.parts import PrepareSettings
from sonde.data.text_blocks import open_executor
from sonde.data.token_file import bin_path, index_path
from sonde.errors import SettingError
from sonde.report import wording

_NUM_BAD_SHOWN = 10
_SECONDS_BETWEEN_LINES = 10.0
_COMPRESSED = (".gz", ".zst")

Texts = Annotated[list[str], Parameter(consume_multiple=True)]


@Parameter(name="*")
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareOptions:
    """The options of `sonde prepare`."""

    train: Texts
    """Training text: one file, or one per language with the source first; 'corpus.{en,de}' expands to two files. gz and
    zst are decompressed; --train=- reads standard input."""
    out: Path
    """The data directory to write."""
    valid: Texts | None = None
    """Validation text, in the same form as --train."""
    test: Texts | None = None
    """Test text, in the same form as --train."""
    tokenizer: str = "bpe"
    """bpe, unigram, word or bytes: train this kind of tokenizer on the training text, shared by all languages. Or a
    tokenizer file: *.json (Hugging Face), *.model (SentencePiece), *.txt (fairseq dictionary)."""
    vocab_size: int = 10_000
    """Vocabulary size, including special tokens. With `word`, 0 keeps every word."""
    workers: int = 1
    """Number of processes that encode. The result does not depend on it."""
    executor: str | None = None
    """Encode on the Dask cluster at dask://HOST:PORT. Its workers must see the same files."""
    layout: Literal["sonde", "fairseq", "megatron"] = "sonde"
    """Layout of the written files. sonde: file names that sonde and fairseq's index reader open. fairseq: also adds the
    file names and dictionaries of fairseq-preprocess. megatron: writes Megatron's variant of the index."""
    bad_lines: Literal["skip", "keep"] = "skip"
    """Skip or keep lines that are not UTF-8, empty or too long. Their translations are treated the same."""
    max_line_bytes: int = 1_000_000
    """Maximum length of a line in bytes; longer lines count as bad."""


def prepare(options: PrepareOptions) -> None:
    """Tokenize text and write it to disk, ready for training."""
    given = {"train": options.train, "valid": options.valid or [], "test": options.test or []}
    settings = PrepareSettings(
        splits={split: name_languages(expand_braces(texts)) for split, texts in given.items() if texts},
        vocab_size=options.vocab_size or None,
        layout="megatron" if options.layout == "megatron" else "fairseq",
        **picked(options, "out", "tokenizer", "bad_lines", "max_line_bytes"),
    )
    console = screen()
    started = time.monotonic()
    with open_executor(options.workers, options.executor) as (pool, num_under_way), progress_on(console) as report:
        done = prepare_data(settings, executor=pool, num_under_way=num_under_way, on_progress=report)
    _show(console, options.out, done, time.monotonic() - started)
    if options.layout == "fairseq":
        directory = DataDirectory(options.out)
        made = link_fairseq_names(options.out, directory.splits, directory.tokenizer())
        console.print(f"for fairseq: {', '.join(path.name for path in made)}", markup=False)


def expand_braces(texts: list[str]) -> list[str]:
    """Expand one group of braces in each path: `a.{en,de}` becomes `a.en` and `a.de`."""
    paths = []
    for text in texts:
        match = re.fullmatch(r"(.*)\{([^{}]*)\}(.*)", text)
        paths += [f"{match[1]}{part}{match[3]}" for part in match[2].split(",")] if match else [text]
    return paths


def name_languages(paths: list[str]) -> dict[str, Path]:
    """Return the texts by language, taken from the file extension. A text without a language extension is named `text`."""
    named: dict[str, Path] = {}
    for path in paths:
        name = Path(path).name
        for ending in _COMPRESSED:
            name = name.removesuffix(ending)
        language = Path(name).suffix.removeprefix(".")
        if language in ("", "txt"):
            language = "text"
        if language in named:
            hint = "languages are named by what files end in, as in corpus.en and corpus.de"
            raise SettingError(f"{named[language]} and {path} would both be {language!r}", hint=hint)
        named[language] = Path(path)
    return named


@contextlib.contextmanager
def progress_on(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar on a terminal; elsewhere print a line every ten seconds to standard error."""
    if not console.is_terminal:
        yield _plain_report()
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(TextColumn("{task.description}"), *columns, console=console, transient=True) as bar:
        tasks = {}

        def report(progress: Progress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bar.add_task(progress.stage, total=progress.num_total_bytes)
            description = f"{progress.stage} {progress.name}"
            bar.update(tasks[progress.stage], completed=progress.num_done_bytes, description=description)

        yield report


def _plain_report() -> Callable[[Progress], None]:
    """Print a line for each new stage and then one every ten seconds, to standard error."""
    stage, started, last = "", 0.0, 0.0

    def report(progress: Progress) -> None:
        nonlocal stage, started, last
        now = time.monotonic()
        if progress.stage != stage:
            stage, started, last = progress.stage, now, now
            print(f"{stage} …", file=sys.stderr, flush=True)
        elif now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            speed = progress.num_done_bytes / (now - started)
            left = (progress.num_total_bytes - progress.num_done_bytes) / speed
            sizes = f"{wording.size(progress.num_done_bytes)} of {wording.size(progress.num_total_bytes)}"
            told = f"{sizes}, {speed / 1e6:.1f} MB/s, {wording.duration(left)} to go"
            print(f"{stage} {progress.name}: {told}", file=sys.stderr, flush=True)

    return report


def _show(console: Console, out: Path, done: Prepared, seconds: float) -> None:
    rows = []
    for one in done.sidecars:
        prefix = out / f"{one.split}.{one.language}"
        size = wording.size(bin_path(prefix).stat().st_size + index_path(prefix).stat().st_size)
        mean = one.num_tokens / max(1, one.num_samples)
        rows.append((prefix, f"{one.num_samples:,}", f"{one.num_tokens:,}", f"{mean:.1f}", size))
    print_rows(console, ("data", ">samples", ">tokens", ">tokens/sample", ">size"), rows)
    stamp = done.tokenizer
    reused = f", {done.num_reused_parts} of {done.num_parts} parts were there" if done.num_reused_parts else ""
    console.print(
        f"tokenizer {out / stamp.file}: {stamp.kind}, {stamp.vocab_size:,} ids; {wording.duration(seconds)}{reused}"
    )
    if done.bad_lines:
        counts = Counter(line.kind for line in done.bad_lines)
        text = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        console.print(f"bad lines: {text}; all of them in {out / 'bad-lines.txt'}", style="yellow")
        for line in done.bad_lines[:_NUM_BAD_SHOWN]:
            console.print(f"  {line.source}:{line.line}: {line.kind}", style="yellow", markup=False)
