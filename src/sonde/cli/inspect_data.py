"""`sonde inspect DATA`: show the sizes, lengths, padding at a token budget and decoded samples of a data directory."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import print_rows, tell
from sonde.data.batching import Batches, batch_by_tokens, padding_efficiency
from sonde.data.directory import DataDirectory
from sonde.data.token_file import TokenFile
from sonde.errors import SettingError
from sonde.report import wording

_NUM_BARS = 12
_BAR_WIDTH = 40


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
    """Show the contents of a data directory: sizes, lengths, padding and decoded samples.

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
    for name in directory.splits if verify else ():
        for language in directory.languages(name):
            directory.tokens(name, language).verify()
    lengths = np.stack([tokens.sizes for tokens in files.values()], axis=1)
    counted = lengths if len(files) == 2 else lengths.max(axis=1)
    batches = batch_by_tokens(counted, max_tokens, multiple_of=8, too_long="skip")
    samples = _samples(directory, files, [0] if sample is None else sample)
    efficiency = {language: padding_efficiency(tokens.sizes, batches) for language, tokens in files.items()}

    def show(console: Console) -> None:
        _show_files(console, directory)
        for language, tokens in files.items():
            _show_histogram(console, f"{split}.{language}", tokens.sizes)
        console.print(f"\nat max_tokens {max_tokens:,}: {_batches_text(batches, efficiency)}")
        _show_samples(console, samples)
        if verify:
            console.print("\nevery byte is as it was written")

    sizes = {"max_tokens": max_tokens, "num_batches": len(batches), "num_too_long": len(batches.skipped)}
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
    """Return `(first, last, count)` bars of equal width over the lengths; the last bar extends to the longest."""
    if len(lengths) == 0:
        return []
    shortest, longest = int(lengths.min()), int(lengths.max())
    typical = max(int(np.quantile(lengths, 0.99)), shortest)
    width = max(1, -(-(typical - shortest + 1) // num_bars))
    bars = []
    for first in range(shortest, typical + 1, width):
        last = first + width - 1 if first + width <= typical else longest
        bars.append((first, last, int(((lengths >= first) & (lengths <= last)).sum())))
    return bars


def _samples(directory: DataDirectory, files: dict[str, TokenFile], numbers: list[int]) -> list[dict[str, Any]]:
    tokenizers = {language: directory.tokenizer(language) for language in files}
    found: list[dict[str, Any]] = []
    for number in numbers:
        for language, tokens in files.items():
            if len(tokens) == 0:
                continue
            if not 0 <= number < len(tokens):
                raise SettingError(f"there is no sample {number}", hint=f"samples are 0 to {len(tokens) - 1}")
            source, line = tokens.origin(number) if tokens.sidecar else ("", 0)
            known = {"sample": number, "language": language, "source": source, "line": line}
            text = tokenizers[language].decode(tokens[number])
            found.append({**known, "num_tokens": len(tokens[number]), "text": text})
    return found


def _show_files(console: Console, directory: DataDirectory) -> None:
    rows = []
    for split, sidecars in directory.splits.items():
        for one in sidecars:
            sizes = directory.tokens(split, one.language).sizes
            lengths = (f"{sizes.mean():.1f}", f"{sizes.max():,}") if len(sizes) else ("", "")
            num_bytes, left_out = one.bin.num_bytes + one.idx.num_bytes, sum(one.left_out.values())
            counts = (f"{one.num_samples:,}", f"{one.num_tokens:,}", *lengths, wording.size(num_bytes), f"{left_out:,}")
            rows.append((f"{split}.{one.language}", *counts, one.source))
    columns = ("data", ">samples", ">tokens", ">mean", ">longest", ">size", ">left out", "made from")
    print_rows(console, columns, rows)
    for stamp in dict.fromkeys(sidecar.tokenizer for sidecar in next(iter(directory.splits.values()))):
        console.print(f"tokenizer: {stamp.kind}, {stamp.vocab_size:,} ids, {stamp.file} {stamp.digest[:12]}")


def _batches_text(batches: Batches, efficiency: dict[str, float]) -> str:
    shares = ", ".join(f"{name} {one:.1%}" for name, one in efficiency.items())
    mean = len(batches.samples) / max(1, len(batches))
    long = f"; {len(batches.skipped):,} samples are longer than that" if len(batches.skipped) else ""
    return f"{len(batches):,} batches of {mean:.1f} samples; real tokens in a padded batch: {shares}{long}"


def _show_samples(console: Console, samples: list[dict[str, Any]]) -> None:
    for one in samples:
        origin = f"{one['source']}:{one['line']}, " if one["source"] else ""
        head = Text(f"\nsample {one['sample']} {one['language']}", style="bold")
        console.print(head, Text(f"{origin}{one['num_tokens']} tokens", style="dim"))
        console.print(Text(f"  {one['text']}"))


def _show_histogram(console: Console, name: str, lengths: NDArray[np.int32]) -> None:
    console.print(f"\ntokens per sample, {name}", style="bold")
    bars = histogram(lengths)
    most = max((count for _, _, count in bars), default=1)
    for first, last, count in bars:
        bar = "█" * round(_BAR_WIDTH * count / most) or ("▏" if count else "")
        console.print(f"{first:>6} – {last:<6} {count:>10,} {bar}")
