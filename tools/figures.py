"""Writes docs/benchmarks.md and its picture from benchmarks/RESULTS.md: how many times faster than
each peer; and the figures that other pages quote (quoted_figures.py).

    python tools/figures.py            after `make bench`, which calls it

A figure is two numbers of one section, found by what stands before them. One whose section is
missing is left out and named.
"""

import html
import math
import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

import quoted_figures

PROJECT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = PROJECT / "benchmarks" / "RESULTS.md"
PAGE: Final = PROJECT / "docs" / "benchmarks.md"
PICTURE: Final = PROJECT / "docs" / "images" / "benchmarks.svg"

_NUMBER: Final = r"([\d,.]+)"
_ROW: Final = 24
_LEFT: Final = 440
_WIDTH: Final = 800
_SCALE: Final = 96
"""Pixels for a factor of ten."""


class Figure(NamedTuple):
    """What is compared with what, and where the two numbers stand."""

    work: str
    peer: str
    section: str
    ours: str
    """A pattern up to the number."""
    theirs: str
    is_rate: bool = False
    """Is more better?"""


class Measured(NamedTuple):
    """A figure with its numbers."""

    figure: Figure
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """How many times faster than the peer."""
        return self.ours / self.theirs if self.figure.is_rate else self.theirs / self.ours


_TRAINER: Final = r"\| sonde, everything on \| [\d.]+ \| "
_LOGGER: Final = r"bytes \| lost.*?\| sonde JSON stream \| "
_PREPARE: Final = r"1 process.*?"

FIGURES: Final = (
    Figure(
        "Training a Transformer, whole updates",
        "bare loop",
        "throughput",
        r"\| sonde, everything on \| ",
        r"\| bare loop \| ",
        True,
    ),
    Figure(
        "Training a Transformer, whole updates",
        "Hugging Face Trainer",
        "throughput",
        r"\| sonde, everything on \| ",
        r"\| Hugging Face Trainer \| ",
        True,
    ),
    Figure(
        "Training a Transformer, whole updates",
        "Lightning",
        "throughput",
        r"\| sonde, everything on \| ",
        r"\| Lightning, CSV logger \| ",
        True,
    ),
    Figure(
        "Training a Transformer, whole updates",
        "fairseq's loop",
        "throughput",
        r"\| sonde, everything on \| ",
        r"\| fairseq's loop, restated \| ",
        True,
    ),
    Figure(
        "What a trainer adds to an update",
        "Lightning",
        "trainer",
        _TRAINER,
        r"\| Lightning, CSV logger \| [\d.]+ \| ",
    ),
    Figure(
        "What a trainer adds to an update",
        "Hugging Face Trainer",
        "trainer",
        _TRAINER,
        r"\| Hugging Face Trainer \| [\d.]+ \| ",
    ),
    Figure(
        "Logging ten numbers", "TensorBoard", "logger", _LOGGER, r"\| tensorboard \(torch\) \| "
    ),
    Figure("Logging ten numbers", "Weights & Biases", "logger", _LOGGER, r"\| wandb offline \| "),
    Figure(
        "Logging ten numbers",
        "orjson and os.write",
        "logger",
        r"\| sonde JSON stream \| ",
        r"\| bare orjson \+ os.write \| ",
    ),
    Figure(
        "One series of a million records",
        "DuckDB on the JSON",
        "records",
        r"\| sonde: one series \| ",
        r"\| DuckDB on the JSON Lines: one series \| ",
    ),
    Figure(
        "A metric into three levels",
        "torchmetrics",
        "metrics",
        r"\| sonde \| ",
        r"\| torchmetrics MeanMetric \| ",
    ),
    Figure(
        "From text to tokens on the disk",
        "datasets.map, tokenizers",
        "prepare",
        _PREPARE + r"\| `sonde prepare` \| ",
        _PREPARE + r"\| `datasets.map`, tokenizers \| ",
    ),
    Figure(
        "From text to tokens on the disk",
        "datasets.map, transformers",
        "prepare",
        _PREPARE + r"\| `sonde prepare` \| ",
        _PREPARE + r"\| `datasets.map`, PreTrainedTokenizerFast \| ",
    ),
    Figure(
        "Encoding by a dictionary of words",
        "fairseq's loop",
        "data",
        r"\| sonde \| ",
        r"\| fairseq's loop \| ",
        True,
    ),
    Figure(
        "Reading sequences at random",
        "fairseq's reader",
        "data",
        r"Random reads.*?\| sonde \| ",
        r"Random reads.*?\| fairseq \| ",
        True,
    ),
    Figure(
        "Collating a batch",
        "fairseq's collater",
        "data",
        r"padded target.*?\| sonde \| ",
        r"padded target.*?\| fairseq \| ",
        True,
    ),
    Figure(
        "Beam search, float32",
        "Hugging Face generate",
        "generate",
        r"sonde float32 +",
        r"Hugging Face float32 +",
        True,
    ),
    Figure(
        "Beam search, float32",
        "CTranslate2",
        "generate",
        r"sonde float32 +",
        r"CTranslate2 float32 +",
        True,
    ),
    Figure(
        "Training blocked while saving 200 MB",
        "torch.save",
        "checkpoint",
        r"\nsonde +[\d.]+ +[\d.]+ +",
        r"\ntorch.save +[\d.]+ +[\d.]+ +",
    ),
    Figure(
        "Training blocked while saving 200 MB",
        "DCP async_save",
        "checkpoint",
        r"\nsonde +[\d.]+ +[\d.]+ +",
        r"\nDCP async_save +[\d.]+ +[\d.]+ +",
    ),
    Figure(
        "Decoding spikes, 3 samples a line",
        "ATorch's way",
        "spikes",
        r"\| decode, 3 samples a line \| [\d,]+ \| ",
        r"\| decode, 3 samples a line \| ",
        True,
    ),
    Figure(
        "Drawing a million steps in a browser",
        "TensorBoard",
        "dashboard",
        r"\| first curve, s \| ",
        r"\| first curve, s \| [\d.]+ \| ",
    ),
    Figure(
        "Statistics of a tensor of 1M values",
        "msprobe",
        "probe",
        r"\| 1M \| (?:[\d.]+ \| ){3}",
        r"\| 1M \| (?:[\d.]+ \| ){4}",
    ),
)

UNITS: Final = {
    "Training a Transformer, whole updates": "tokens/s",
    "What a trainer adds to an update": "µs",
    "Logging ten numbers": "µs",
    "One series of a million records": "ms",
    "A metric into three levels": "µs",
    "From text to tokens on the disk": "s",
    "Encoding by a dictionary of words": "MB/s",
    "Reading sequences at random": "thousand/s",
    "Collating a batch": "batches/s",
    "Beam search, float32": "tokens/s",
    "Training blocked while saving 200 MB": "ms",
    "Decoding spikes, 3 samples a line": "lines/s",
    "Drawing a million steps in a browser": "s",
    "Statistics of a tensor of 1M values": "ms",
}


def main() -> None:
    """Write the page and the picture."""
    found, missing = measured(RESULTS.read_text(encoding="utf-8"))
    for figure in missing:
        print(
            f"left out, not in {RESULTS.name}: {figure.work} against {figure.peer}", file=sys.stderr
        )
    PAGE.write_text(page(found), encoding="utf-8")
    for quoting in quoted_figures.pages():
        text = quoting.read_text(encoding="utf-8")
        quoting.write_text(
            quoted_figures.with_figures(text, RESULTS.read_text(encoding="utf-8")), encoding="utf-8"
        )
    PICTURE.write_text(picture(found), encoding="utf-8")


def measured(results: str) -> tuple[list[Measured], list[Figure]]:
    """Every figure that the results hold, and those they do not."""
    _, *parts = re.split(r"^## (\S+)\n", results, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    found = []
    missing = []
    for figure in FIGURES:
        text = sections.get(figure.section, "")
        numbers = [
            re.search(pattern + _NUMBER, text, re.DOTALL)
            for pattern in (figure.ours, figure.theirs)
        ]
        if all(numbers):
            ours, theirs = (float(match[1].replace(",", "")) for match in numbers if match)
            found.append(Measured(figure, ours, theirs))
        else:
            missing.append(figure)
    return found, missing


def page(found: list[Measured]) -> str:
    """docs/benchmarks.md."""
    rows = [
        f"| {row.figure.work} | {row.figure.peer} | {row.ours:,g} | {row.theirs:,g} |"
        f" {UNITS[row.figure.work]} | {_times(row.ratio)} | `{row.figure.section}` |"
        for row in found
    ]
    table = "\n".join(
        [
            "| work | beside | ours | theirs | unit | ratio | section |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
        ]
    )
    return f"""# Benchmarks

Written by `tools/figures.py` from [the results](../benchmarks/RESULTS.md). The tables there have
the machine, the versions and the command of every section.

![How many times faster sonde is than each peer](images/benchmarks.svg)

A ratio above 1 means that sonde is faster. Figures are CPU time on two cores, with one thread.
`fairseq's loop` and `ATorch's way` are our reimplementations; the other peers are installed and run
as they are.

{table}

## Run them yourself

```sh
make bench    # all of them, about 25 minutes; needs nothing but Python and a network
.venv-bench/bin/python benchmarks/run_all.py trainer logger    # two of them
.venv-bench/bin/python benchmarks/run_all.py --studies         # how often verdicts are right: hours
```

`make bench` makes an environment of its own, `.venv-bench`, with the peers in it. A busy machine
makes both sides slower and the ratios less certain: each section says how busy it was.
Where we miss a target, the section says so.
"""


def picture(found: list[Measured]) -> str:
    """A bar for each figure, on a logarithmic scale; the colours follow the reader's light or
    dark.
    """
    height = _ROW * len(found) + 56
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
            ' aria-label="How many times faster sonde is than each peer">'
        ),
        (
            "<style>text{font:13px system-ui,sans-serif;fill:#1f2328}.dim{fill:#59636e}"
            ".bar{fill:#2f6fdb}.slow{fill:#b35900}.grid{stroke:#d1d9e0}.one{stroke:#59636e}"
        ),
        "@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.dim{fill:#9198a1}.bar{fill:#4a90ff}.slow{fill:#f0883e}.grid{stroke:#3d444d}.one{stroke:#9198a1}}</style>",
        '<text x="8" y="20" font-weight="bold">How many times faster than</text>',
    ]
    for times in (1, 10, 100):
        x = _LEFT + _SCALE * math.log10(times)
        kind = "one" if times == 1 else "grid"
        lines.append(f'<line class="{kind}" x1="{x:.0f}" x2="{x:.0f}" y1="30" y2="{height - 20}"/>')
        lines.append(
            f'<text class="dim" x="{x:.0f}" y="{height - 6}" text-anchor="middle">{times}×</text>'
        )
    work = ""
    for number, row in enumerate(found):
        y = 34 + _ROW * number
        if row.figure.work != work:
            work = row.figure.work
            lines.append(f'<text x="8" y="{y + 14}">{html.escape(_short(work))}</text>')
        reach = _SCALE * math.log10(max(row.ratio, 0.1))
        x, width = (_LEFT, reach) if reach >= 0 else (_LEFT + reach, -reach)
        kind = "bar" if row.ratio >= 1 else "slow"
        lines.append(
            f'<text class="dim" x="{_LEFT - 34}" y="{y + 14}"'
            f' text-anchor="end">{html.escape(row.figure.peer)}</text>'
        )
        lines.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y + 3}" width="{max(width, 1.5):.1f}"'
            f' height="{_ROW - 9}" rx="2"/>'
        )
        lines.append(
            f'<text x="{max(x + width, _LEFT) + 6:.1f}" y="{y + 14}">{_times(row.ratio)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def _short(work: str) -> str:
    return work.partition(",")[0].replace(
        "Training blocked while saving 200 MB", "Saving a checkpoint"
    )


def _times(ratio: float) -> str:
    if ratio >= 9.95:
        return f"{ratio:.0f}×"
    if ratio >= 1.95:
        return f"{ratio:.1f}×"
    return f"{ratio:.2f}×"


if __name__ == "__main__":
    main()
