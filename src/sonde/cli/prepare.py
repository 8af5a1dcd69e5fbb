"""`sonde prepare`: turn text files into a data directory. `sonde inspect DATA`: show what is in it.

`prepare` shows a progress bar on a terminal and a line per stage in logs. `inspect` shows sizes,
lengths, padding at a token budget and decoded samples.
"""

import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from sonde.cli.terminal import picked, print_rows, screen, tell
from sonde.data.batching import Batches, batch_by_tokens, padding_efficiency
from sonde.data.binarise import OnProgress, PrepareSettings
from sonde.data.binarise import prepare as prepare_data
from sonde.data.directory import DataDirectory, link_fairseq_names
from sonde.data.text_blocks import open_executor
from sonde.data.token_file import TokenFile
from sonde.errors import SettingError
from sonde.report import wording

_NUM_BAD_SHOWN = 10
_NUM_BARS = 12
_BAR_WIDTH = 40

Texts = Annotated[list[str], Parameter(consume_multiple=True)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareOptions:
    """The options of `sonde prepare`."""

    train: Texts
    """Training text: one file, or one per language with the source first; 'corpus.{en,de}' expands
    to two files. gz and zst are decompressed; --train=- reads standard input.
    """
    out: Path
    """The data directory to write."""
    valid: Texts | None = None
    """Validation text, in the same form as --train."""
    test: Texts | None = None
    """Test text, in the same form as --train."""
    tokenizer: str = "bpe"
    """bpe, unigram, word or bytes: train this kind of tokenizer on the training text, shared by all
    languages. Or a tokenizer file: *.json (Hugging Face), *.model (SentencePiece), *.txt (fairseq
    dictionary).
    """
    vocab_size: int = 10_000
    """Vocabulary size, including special tokens. With `word`, 0 keeps every word."""
    workers: int = 1
    """Number of processes that encode. The result does not depend on it."""
    executor: str | None = None
    """Encode on the Dask cluster at dask://HOST:PORT. Its workers must see the same files."""
    layout: Literal["sonde", "fairseq", "megatron"] = "sonde"
    """Layout of the written files. sonde: file names that sonde and fairseq's index reader open.
    fairseq: also adds the file names and dictionaries of fairseq-preprocess. megatron: writes
    Megatron's variant of the index.
    """
    max_line_bytes: int = 1_000_000
    """Maximum length of a line in bytes; longer lines count as bad."""


def prepare(options: PrepareOptions) -> None:
    """Tokenize text and write it to disk, ready for training."""
    given = {"train": options.train, "valid": options.valid or [], "test": options.test or []}
    settings = PrepareSettings(
        splits={
            split: name_languages(expand_braces(texts)) for split, texts in given.items() if texts
        },
        vocab_size=options.vocab_size or None,
        layout="megatron" if options.layout == "megatron" else "fairseq",
        **picked(options, "out", "tokenizer", "max_line_bytes"),
    )
    console = screen()
    started = time.monotonic()
    with (
        open_executor(options.workers, options.executor) as (pool, num_under_way),
        progress_on(console) as report,
    ):
        done = prepare_data(
            settings, executor=pool, num_under_way=num_under_way, on_progress=report
        )
    directory = DataDirectory(options.out)
    _show_files(console, directory)
    reused = ""
    if done.num_reused_parts:
        reused = f", {done.num_reused_parts} of {done.num_parts} parts were there"
    console.print(
        f"{options.out} took {wording.duration(time.monotonic() - started)}{reused}", markup=False
    )
    if done.bad_lines:
        counts = Counter(line.kind for line in done.bad_lines)
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        console.print(
            f"bad lines: {kinds}; all of them in {options.out / 'bad-lines.txt'}", style="yellow"
        )
    for line in done.bad_lines[:_NUM_BAD_SHOWN]:
        console.print(f"  {line.source}:{line.line}: {line.kind}", style="yellow", markup=False)
    if options.layout == "fairseq":
        made = link_fairseq_names(directory)
        console.print(f"for fairseq: {', '.join(path.name for path in made)}", markup=False)


def expand_braces(texts: list[str]) -> list[str]:
    """Expand one group of braces in each path: `a.{en,de}` becomes `a.en` and `a.de`."""
    paths = []
    for text in texts:
        match = re.fullmatch(r"(.*)\{([^{}]*)\}(.*)", text)
        paths += (
            [f"{match[1]}{part}{match[3]}" for part in match[2].split(",")] if match else [text]
        )
    return paths


def name_languages(paths: list[str]) -> dict[str, Path]:
    """Return the texts by language, taken from the file extension. A text without a language
    extension is named `text`.
    """
    named: dict[str, Path] = {}
    for path in paths:
        suffix = Path(re.sub(r"\.(gz|zst)$", "", path)).suffix.removeprefix(".")
        language = "text" if suffix in ("", "txt") else suffix
        if language in named:
            hint = "languages are named by what files end in, as in corpus.en and corpus.de"
            raise SettingError(
                f"{named[language]} and {path} would both be {language!r}", hint=hint
            )
        named[language] = Path(path)
    return named


@contextlib.contextmanager
def progress_on(console: Console) -> Iterator[OnProgress]:
    """Show a progress bar on a terminal; elsewhere print a line for each stage to standard
    error.
    """
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bars = Progress(TextColumn("{task.description}"), *columns, console=console, transient=True)
    with bars if console.is_terminal else contextlib.nullcontext(bars) as bar:
        tasks = {}

        def report(stage: str, name: str, num_done_bytes: int, num_total_bytes: int) -> None:
            if stage not in tasks:
                if not console.is_terminal:
                    print(f"{stage} …", file=sys.stderr, flush=True)
                tasks[stage] = bar.add_task(stage, total=num_total_bytes)
            bar.update(tasks[stage], completed=num_done_bytes, description=f"{stage} {name}")

        yield report


def inspect(
    data: Path,
    /,
    *,
    split: str | None = None,
    sample: list[int] | None = None,
    max_tokens: int = 4096,
    verify: bool = False,
    json: bool = False,
) -> None:
    """Show what is in a data directory.

    Its sizes, the lengths of its samples, the padding that batches need, and decoded samples.

    Parameters
    ----------
    data
        The data directory.
    split
        The split whose lengths and samples to show (default: the first split).
    sample
        Number of a sample to decode, starting at 0. Repeat it to show several.
    max_tokens
        Token budget of a batch. Shows how much of each batch would be padding.
    verify
        Read every byte and check it against the stored checksums.
    json
        Print one JSON document instead of tables.
    """
    directory = DataDirectory(data)
    split = split or next(iter(directory.splits))
    files = {language: directory.tokens(split, language) for language in directory.languages(split)}
    if verify:
        directory.verify()
    lengths = np.stack([tokens.sizes for tokens in files.values()], axis=1)
    counted = lengths if len(files) == 2 else lengths.max(axis=1)
    batches = batch_by_tokens(counted, max_tokens, multiple_of=8, too_long="skip")
    samples = _samples(directory, files, sample or [0])
    efficiency = {
        language: padding_efficiency(tokens.sizes, batches) for language, tokens in files.items()
    }

    def show(console: Console) -> None:
        _show_files(console, directory)
        for language, tokens in files.items():
            _show_histogram(console, f"{split}.{language}", tokens.sizes)
        console.print(f"\nat max_tokens {max_tokens:,}: {_batches_text(batches, efficiency)}")
        _show_samples(console, samples)
        if verify:
            console.print("\nevery byte is as it was written")

    sizes = {
        "max_tokens": max_tokens,
        "num_batches": len(batches),
        "num_too_long": len(batches.skipped),
    }
    document = {
        "directory": str(directory.path),
        "splits": {name: list(sidecars) for name, sidecars in directory.splits.items()},
        "split": split,
        "histograms": {language: histogram(tokens.sizes) for language, tokens in files.items()},
        "batches": {**sizes, "padding_efficiency": efficiency},
        "samples": samples,
    }
    tell(document, show, json=json)


def histogram(lengths: NDArray[np.int32], num_bars: int = _NUM_BARS) -> list[tuple[int, int, int]]:
    """Return `(first, last, count)` bars of equal width over the lengths; the last bar extends to
    the longest.
    """
    if len(lengths) == 0:
        return []
    shortest = int(lengths.min())
    longest = int(lengths.max())
    typical = max(int(np.quantile(lengths, 0.99)), shortest)
    width = max(1, -(-(typical - shortest + 1) // num_bars))
    starts = [*range(shortest, typical + 1, width), longest + 1]
    counts = np.histogram(lengths, starts)[0].tolist()
    return [
        (first, end - 1, count)
        for (first, end), count in zip(pairwise(starts), counts, strict=True)
    ]


def _samples(
    directory: DataDirectory, files: dict[str, TokenFile], numbers: list[int]
) -> list[dict[str, Any]]:
    tokenizers = {language: directory.tokenizer(language) for language in files}
    found: list[dict[str, Any]] = []
    for number in numbers:
        for language, tokens in files.items():
            if len(tokens) == 0:
                continue
            if not 0 <= number < len(tokens):
                raise SettingError(
                    f"there is no sample {number}", hint=f"samples are 0 to {len(tokens) - 1}"
                )
            source, line = tokens.origin(number) if tokens.sidecar else ("", 0)
            known = {"sample": number, "language": language, "source": source, "line": line}
            text = tokenizers[language].decode(tokens[number])
            found.append({**known, "num_tokens": len(tokens[number]), "text": text})
    return found


def _show_files(console: Console, directory: DataDirectory) -> None:
    rows = []
    sources = []
    for split, sidecars in directory.splits.items():
        for sidecar in sidecars:
            sizes = directory.tokens(split, sidecar.language).sizes
            lengths = (f"{sizes.mean():.1f}", f"{sizes.max():,}") if len(sizes) else ("", "")
            num_bytes = sidecar.bin.num_bytes + sidecar.idx.num_bytes
            left_out = sum(sidecar.left_out.values())
            counts = (
                f"{sidecar.num_samples:,}",
                f"{sidecar.num_tokens:,}",
                *lengths,
                wording.size(num_bytes),
                f"{left_out:,}",
            )
            rows.append((f"{split}.{sidecar.language}", *counts))
            sources.append((f"{split}.{sidecar.language}", sidecar.source))
    columns = (
        "data",
        ">samples",
        ">tokens",
        ">mean",
        ">longest",
        ">size",
        ">left out",
    )
    print_rows(console, columns, rows)
    for name, source in sources:
        console.print(Text(f"{name} was made from {source}"), soft_wrap=True)
    for stamp in dict.fromkeys(
        sidecar.tokenizer for sidecar in next(iter(directory.splits.values()))
    ):
        console.print(
            f"tokenizer: {stamp.kind}, {stamp.vocab_size:,} ids, {stamp.file} {stamp.digest[:12]}"
        )


def _batches_text(batches: Batches, efficiency: dict[str, float]) -> str:
    shares = ", ".join(f"{name} {share:.1%}" for name, share in efficiency.items())
    mean = len(batches.samples) / max(1, len(batches))
    long = (
        f"; {len(batches.skipped):,} samples are longer than that" if len(batches.skipped) else ""
    )
    return (
        f"{len(batches):,} batches of {mean:.1f} samples; real tokens in a padded batch:"
        f" {shares}{long}"
    )


def _show_samples(console: Console, samples: list[dict[str, Any]]) -> None:
    for sample in samples:
        origin = f"{sample['source']}:{sample['line']}, " if sample["source"] else ""
        head = Text(f"\nsample {sample['sample']} {sample['language']}", style="bold")
        console.print(head, Text(f"{origin}{sample['num_tokens']} tokens", style="dim"))
        console.print(Text(f"  {sample['text']}"))


def _show_histogram(console: Console, name: str, lengths: NDArray[np.int32]) -> None:
    console.print(f"\ntokens per sample, {name}", style="bold")
    bars = histogram(lengths)
    most = max((count for _, _, count in bars), default=1)
    for first, last, count in bars:
        bar = "█" * round(_BAR_WIDTH * count / most) or ("▏" if count else "")
        console.print(f"{first:>6} – {last:<6} {count:>10,} {bar}")
