"""Watching single samples and keeping a ledger of them: what it finds, and what it costs.

    python benchmarks/samples.py              about fifteen minutes
    python benchmarks/samples.py tune         the seeds that the watch was tuned on (even), instead
                                              of those it was not (odd)

Bad rows of twenty kinds (planted_rows.py), at most 0.3 % of a corpus, are planted in four corpora;
a small model is trained on each for two epochs in batches of 8, 32 and 64, as `sonde train` does
it. What the run itself recorded is then looked at: was a bad row that lost more than the 512 rows
nearest in time noticed at its step (by itself, or as the worst of an event), how many good rows
were, and do the bad ones stand in the first 1 % of `sonde worst`? The two corpora of /work/shared
are left out where it is missing. The audit of a corpus before training is measured by
benchmarks/audit.py.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import best_cpu_seconds, in_child, markdown_table
from benchmarks.planted_rows import CORPORA, SHARED, LossTrace, plant_rows, prepare_corpus

from sonde.records.layout import RunLayout
from sonde.spikes.ledger import Ledger
from sonde.spikes.ledger_log import read_ledger, read_worst
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings
from sonde.spikes.sample_watch import SampleWatch
from sonde.spikes.spike_log import read_spikes
from sonde.train.session import train_run

_BATCHES: Final = (8, 32, 64)
_SHARE: Final = 0.003
_NUM_STEPS: Final = 2000
_LEDGER_SAMPLES: Final = 10_000_000


def main() -> None:
    torch.set_num_threads(1)
    first_seed = 2 if "tune" in sys.argv[1:] else 1
    found = [
        in_child(watch_training, corpus, batch, first_seed + 2 * place).result
        for place, batch in enumerate(_BATCHES)
        for corpus in corpora()
    ]
    print(
        markdown_table(
            ["corpus, batch", *Found.COLUMNS], [[corpus.name, *corpus.cells()] for corpus in found]
        )
        + "\n"
    )
    kinds = sorted({kind for corpus in found for kind in corpus.by_kind})
    print(
        markdown_table(
            ["kind of bad row", "noticed at its step", "in the first 1 %"], kind_rows(found, kinds)
        )
        + "\n"
    )
    print(
        markdown_table(
            ["64 samples a step, nothing happens", "µs a step", "gate", "goal"], watch_rows()
        )
        + "\n"
    )
    columns = [
        f"ledger of {_LEDGER_SAMPLES:,} samples, two epochs",
        "MB on the disk",
        "µs a sample",
        "`sonde worst`, s",
    ]
    print(markdown_table([*columns, "gates 200 MB, 2 µs, 2 s"], ledger_rows()))


def corpora() -> list[str]:
    """Those that can be had here."""
    shared = {"plays": SHARED / "tinyshakespeare.txt", "captions": SHARED / "multi30k"}
    return [name for name in CORPORA if name not in shared or shared[name].exists()]


@dataclass(slots=True)
class Found:
    """What a run noticed of the rows planted in it."""

    COLUMNS = (
        *("bad rows seen", "above their 512 neighbours", "noticed", "good rows noticed", "of"),
        *("per 20,000", "in the first 1 % of `sonde worst`"),
    )

    name: str
    num_bad: int = 0
    num_clean: int = 0
    num_false: int = 0
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)

    def count(self, kind: str, what: str, number: int = 1) -> None:
        """One more of a kind."""
        self.by_kind.setdefault(kind, Counter())[what] += number

    def total(self, what: str) -> int:
        """Over all kinds."""
        return sum(counts[what] for counts in self.by_kind.values())

    def cells(self) -> list[str]:
        """A line of the table."""
        return [
            str(self.num_bad),
            str(self.total("above")),
            share(self.total("noticed"), self.total("above")),
            str(self.num_false),
            f"{self.num_clean:,}",
            f"{20_000 * self.num_false / self.num_clean:.2f}",
            share(self.total("ranked"), self.total("samples above")),
        ]


def watch_training(corpus: str, batch: int, seed: int) -> Found:
    """Plant rows, train two epochs, and look at what the run recorded."""
    torch.set_num_threads(1)
    found = Found(f"{corpus}, {batch}")
    with (
        tempfile.TemporaryDirectory() as name,
        contextlib.redirect_stdout(Path(os.devnull).open("w")),
    ):
        folder = Path(name)
        settings = prepare_corpus(corpus, folder, batch=batch, seed=seed)
        kinds = plant_rows(settings, share=_SHARE, seed=seed)
        losses = LossTrace()
        train_run(settings, folder / "run", callbacks=[losses])
        trace = losses.arrays()
        log = read_spikes(folder / "run")
        ledger = read_ledger(folder / "run")
        first = {int(history.sample) for history in ledger.worst(len(ledger) // 100)}
    is_bad = np.isin(trace.samples, list(kinds))
    found.num_bad = int(is_bad.sum())
    found.num_clean = int((~is_bad).sum())
    alone = {(sample.step, int(sample.sample)) for sample in log.samples}
    noticed = alone | {
        (spike.event.first_step, int(spike.samples()[0].sample)) for spike in log.spikes
    }
    found.num_false = len([sample for _, sample in alone if sample not in kinds])
    above = [
        int(row) for row in np.flatnonzero(is_bad) if trace.exceeds_neighbours(int(row), bad=is_bad)
    ]
    for row in above:
        step = int(trace.steps[row])
        sample = int(trace.samples[row])
        found.count(kinds[sample], "above")
        found.count(kinds[sample], "noticed", (step, sample) in noticed)
    for sample in {int(trace.samples[row]) for row in above}:
        found.count(kinds[sample], "samples above")
        found.count(kinds[sample], "ranked", sample in first)
    return found


def kind_rows(found: list[Found], kinds: list[str]) -> list[list[str]]:
    rows = []
    for kind in [*kinds, "all"]:
        counts: Counter[str] = Counter()
        for corpus in found:
            for name, own in corpus.by_kind.items():
                counts += own if kind in (name, "all") else Counter()
        rows.append(
            [
                kind,
                share(counts["noticed"], counts["above"]),
                share(counts["ranked"], counts["samples above"]),
            ]
        )
    return rows


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "–"


def watch_rows() -> list[list[str]]:
    """What watching samples adds to a step."""
    generator = np.random.default_rng(1)
    losses = [
        torch.tensor(generator.normal(3, 0.3, 64), dtype=torch.float32) for _ in range(_NUM_STEPS)
    ]
    counts = [torch.tensor(generator.integers(5, 200, 64)) for _ in range(_NUM_STEPS)]
    ids = [[("train", 64 * step + row) for row in range(64)] for step in range(_NUM_STEPS)]
    arrays = [(loss.numpy(), count.numpy()) for loss, count in zip(losses, counts, strict=True)]
    with tempfile.TemporaryDirectory() as name:
        recorders = {
            told: SpikeRecorder(Path(name) / str(number), settings=settings)
            for number, (told, settings) in enumerate(
                {
                    "recorder without": SpikeSettings(sample_risk=None),
                    "recorder with": SpikeSettings(),
                }.items()
            )
        }
        watch = SampleWatch()

        def watched() -> None:
            for step, (loss, count) in enumerate(arrays):
                watch.observe(step, loss, count)

        def recorded(recorder: SpikeRecorder) -> None:
            for step in range(_NUM_STEPS):
                recorder.observe(
                    step,
                    3.0,
                    sample_ids=ids[step],
                    sample_losses=losses[step],
                    token_counts=counts[step],
                )

        best = best_cpu_seconds(
            {
                "watch": watched,
                **{told: partial(recorded, recorder) for told, recorder in recorders.items()},
            },
            num_turns=12,
        )
    micro = {told: 1e6 * seconds / _NUM_STEPS for told, seconds in best.items()}
    added = micro["recorder with"] - micro["recorder without"]
    rows = [("the watch alone", micro["watch"]), ("what it adds to the recorder", added)]
    table = [
        [
            told,
            f"{cost:.1f}",
            *(f"≤ {limit}: {'met' if cost <= limit else 'missed'}" for limit in (10, 5)),
        ]
        for told, cost in rows
    ]
    return [*table, ["the recorder with it", f"{micro['recorder with']:.1f}", "", ""]]


def ledger_rows() -> list[list[str]]:
    rows = []
    for kind in ("numbers", "content"):
        cost = in_child(keep_ledger, kind, _LEDGER_SAMPLES).result
        met = cost["peak"] <= 200 and cost["micro"] <= 2 and cost["seconds"] <= 2
        rows.append(
            [
                f"known by {kind}",
                (
                    f"{cost['megabytes']:.0f} ({cost['after one']:.0f} after one,"
                    f" {cost['peak']:.0f} at most)"
                ),
                f"{cost['micro']:.2f}",
                f"{cost['seconds']:.2f} ({cost['seconds after one']:.2f} after one)",
                "met" if met else "missed",
            ]
        )
    return rows


def keep_ledger(kind: str, number: int) -> dict[str, float]:
    """Two epochs in steps of 64 samples, a checkpoint after every twentieth of one."""
    generator = np.random.default_rng(1)
    cost = {"peak": 0.0}
    with tempfile.TemporaryDirectory() as name:
        layout = RunLayout(Path(name))
        step = 0
        spent = 0.0
        ledger = Ledger(layout, 0)
        for epoch in ("one", "two"):
            order = generator.permutation(number)
            z = generator.normal(0, 1, number)
            names = (
                order
                if kind == "numbers"
                else order.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            )
            started = time.process_time()
            for start in range(0, number, 64):
                step += 1
                ledger.add(step, names[start : start + 64], z[start : start + 64])
                if step % (number // 64 // 20) == 0:
                    ledger.mark()
                    cost["peak"] = max(cost["peak"], _megabytes(layout))
            ledger.mark()
            spent += time.process_time() - started
            megabytes = _megabytes(layout)
            seconds = best_cpu_seconds({"worst": lambda: read_worst(Path(name), 100)}, num_turns=2)[
                "worst"
            ]
            if epoch == "one":
                cost["after one"] = megabytes
                cost["seconds after one"] = seconds
        ledger.close()
    return {**cost, "megabytes": megabytes, "micro": 1e6 * spent / (2 * number), "seconds": seconds}


def _megabytes(layout: RunLayout) -> float:
    return sum(path.stat().st_size for path in layout.ledger.iterdir()) / 1e6


if __name__ == "__main__":
    main()
