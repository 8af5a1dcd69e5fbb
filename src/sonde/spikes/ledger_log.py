"""Read the ledger of a run: every sample's history, merged over ranks, and the worst samples with
their text. Needs no torch.

    for sample in read_ledger(Path("runs/x")).worst(20): print(sample.dataset, sample.sample,
        sample.mean, sample.trend)
    for entry in read_worst(Path("runs/x"), 20).entries: print(entry.history.mean,
        entry.history.trend, entry.decoded.text)

Damaged blocks are skipped and counted. What a restart or a rollback superseded is left out. Among
the worst, samples with the same text are one entry.
"""

import json
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from sonde.data.skip_list import CONTENT
from sonde.errors import RunError, SettingError
from sonde.records.files import check_folder, open_regular
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.spikes import ledger_blocks as blocks
from sonde.spikes.decoding import DecodedSample, Decoder, SampleDecoder
from sonde.spikes.ledger_blocks import Block, SampleColumns, SampleKeys, by_sample, together
from sonde.spikes.spike_log import RankedSample

HIGH: Final = 3.0
"""A sample this many deviations above samples of its length is not learnt."""
LOW: Final = 2.0
"""A sample below this many deviations is learnt."""
LEARNT: Final = "learnt"
FORGOTTEN: Final = "forgotten"
NEVER_LEARNT: Final = "never learnt"
_LOOKED_AT: Final = 4
"""Read this many times more samples than requested, to find duplicates."""
_DAMAGE: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    zlib.error,
)
"""The exceptions that a damaged or malicious block can raise."""


@dataclass(frozen=True, slots=True)
class SampleHistory:
    """The history of one sample in a run."""

    dataset: str
    """The name of the dataset; empty if the loop gave none."""
    sample: int | str
    """The number in the dataset, or the name that the loop gave it, or `#` and a hash of its
    content.
    """
    count: int
    """How often the sample was seen."""
    mean: float
    """The mean over all visits of how far it was above samples of its length, in deviations."""
    last: float
    """The same for the last visit."""
    first_step: int
    """The step at which it was first seen."""
    last_step: int
    """The step at which it was last seen."""

    @property
    def trend(self) -> str:
        """LEARNT, FORGOTTEN, NEVER_LEARNT, or empty if there is no clear trend."""
        if self.count < 2:
            return ""
        before = (self.mean * self.count - self.last) / (self.count - 1)
        if before >= HIGH and self.last < LOW:
            return LEARNT
        if before >= HIGH and self.last >= HIGH:
            return NEVER_LEARNT
        if before < LOW and self.last >= HIGH:
            return FORGOTTEN
        return ""


@dataclass(frozen=True, kw_only=True)
class LedgerHistory:
    """The histories of all samples of a run."""

    rows: SampleColumns
    """One row per sample."""
    keys: SampleKeys
    """The meaning of the keys."""
    datasets: Mapping[str, Any]
    """The run's description of its datasets (decoding.py)."""
    num_bad: int
    """The number of stretches in the files that could not be read."""

    def __len__(self) -> int:
        return len(self.rows.keys)

    def worst(self, num: int) -> list[SampleHistory]:
        """Return the samples with the highest mean excess over others of their length, worst
        first.
        """
        num = min(max(num, 0), len(self))
        if not num:
            return []
        rows = self.rows
        means = rows.sums / rows.counts
        places = np.argpartition(means, len(self) - num)[len(self) - num :]
        places = places[np.lexsort((places, -means[places]))]
        columns = [means[places].tolist(), *(column.tolist() for column in rows.part(places))]
        found = []
        for mean, key, count, _, last, first_step, last_step in zip(*columns, strict=True):
            name = self.keys.name_of(key)
            found.append(
                SampleHistory(
                    *name, count, mean / blocks.UNIT, last / blocks.UNIT, first_step, last_step
                )
            )
        return found

    def by_content(self, history: SampleHistory) -> SampleHistory:
        """Return a history with the dataset and number that a skip list uses, if the run names its
        samples by nothing but their content.
        """
        name = history.sample
        if self.keys.texts or set(self.keys.datasets) != {CONTENT} or not isinstance(name, str):
            return history
        return replace(history, dataset=CONTENT, sample=int(name[1:], 16))


def read_ledger(run: Path) -> LedgerHistory:
    """Read the ledger of the run directory `run`; empty if the run kept none."""
    layout = RunLayout(run)
    ranks = layout.ledger_ranks()
    if not ranks:
        read_manifest(run)  # raises if this is not a run
    check_folder(layout.ledger)
    keys = SampleKeys()
    num_bad = 0
    of_ranks: list[SampleColumns] = []
    datasets: dict[str, Any] = {}
    for rank in ranks:
        part = read_rank(layout, rank)
        datasets |= part.datasets
        found = together(list(part.folded(by_sample(together(part.visits)))))
        of_ranks.append(_with_codes(found, part.keys, keys))
        num_bad += part.num_bad
    rows = together(of_ranks)
    if len(of_ranks) > 1:
        rows = by_sample(rows.part(np.argsort(rows.last_steps, kind="stable")))
    return LedgerHistory(rows=rows, keys=keys, datasets=datasets, num_bad=num_bad)


class RankLedger:
    """The contents of one rank's files."""

    def __init__(self) -> None:
        self.base: list[Block] = []
        """The blocks of rows in the base file."""
        self.visits: list[SampleColumns] = []
        """The visits in the journal, in order of time."""
        self.keys = SampleKeys()
        self.datasets: dict[str, Any] = {}
        self.generation = 0
        """The number of the journal that continues the base."""
        self.base_step = -1
        """The last step in the base."""
        self.num_bad = 0

    def take(self, path: Path) -> None:
        """Add the blocks of a file. Damaged ones are counted in `num_bad`."""
        for block in _scan_file(path):
            try:
                if block is None:
                    self.num_bad += 1
                else:
                    self._take(block)
            except _DAMAGE:
                self.num_bad += 1

    def _take(self, block: Block) -> None:
        if block.kind in blocks.KINDS_OF_ROWS:
            self.base.append(block)
        elif block.kind in blocks.KINDS_OF_VISITS:
            self.visits.append(blocks.decode(block))
        elif block.kind == blocks.NAMES:
            names = json.loads(bytes(block.payload))
            self.keys.learn(names)
            self.datasets |= dict(names.get("data") or {})
        elif block.kind == blocks.BASE:
            base = json.loads(bytes(block.payload))
            self.generation = int(base["generation"])
            self.base_step = int(base["last_step"])
        elif block.kind == blocks.REWIND:
            # the base cannot be split any more
            step = int(json.loads(bytes(block.payload))["step"])
            self.visits = [visits.part(visits.last_steps <= step) for visits in self.visits]

    def folded(self, new: SampleColumns) -> Iterator[SampleColumns]:
        """Merge new rows into the rows of the base, both sorted by key, one block at a time."""
        place = 0
        for block in self.base:
            try:
                old = blocks.decode(block)
            except _DAMAGE:
                self.num_bad += 1
                continue
            end = max(place, int(np.searchsorted(new.keys, old.keys[-1:], "right").sum()))
            yield by_sample(together([old, new.part(slice(place, end))])) if end > place else old
            place = end
        for start in range(place, len(new.keys), blocks.MAX_ROWS):
            yield new.part(slice(start, start + blocks.MAX_ROWS))


def read_rank(layout: RunLayout, rank: int) -> RankLedger:
    """Read the files of one rank. Raises RunError if one cannot be opened."""
    ledger = RankLedger()
    ledger.take(layout.ledger_base(rank))
    ledger.take(layout.ledger_journal(rank, ledger.generation))
    return ledger


def _scan_file(path: Path) -> list[Block | None]:
    """Return the blocks of a memory-mapped file; empty if there is no file."""
    try:
        with open_regular(path) as file:
            if not os.fstat(file.fileno()).st_size:
                return []
            return list(blocks.scan_blocks(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {path}", cause=error.strerror or str(error)) from error


def _with_codes(rows: SampleColumns, theirs: SampleKeys, ours: SampleKeys) -> SampleColumns:
    """Renumber the datasets in the rows of a rank to match those of all ranks."""
    our_code_of = {code: ours.code(name) for name, code in theirs.datasets.items()}
    ours.texts |= theirs.texts
    if all(their_code == our_code for their_code, our_code in our_code_of.items()):
        return rows
    table = np.arange(1 << 16, dtype=np.uint64)
    table[list(our_code_of)] = list(our_code_of.values())
    their_codes = rows.keys >> np.uint64(48)
    numbers = rows.keys & np.uint64((1 << 48) - 1)
    our_codes = table[their_codes.astype(np.intp)]
    return SampleColumns((our_codes << np.uint64(48)) | numbers, *rows[1:])


@dataclass(frozen=True, kw_only=True, slots=True)
class WorstSample:
    """A sample, and others with the same text."""

    history: SampleHistory
    """The history of the sample."""
    decoded: DecodedSample
    """Its text; `problem` says why it is not known."""
    duplicates: tuple[SampleHistory, ...] = ()
    """Other samples among the worst with the same text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """The worst samples of a run."""

    entries: tuple[WorstSample, ...]
    """The entries, worst first."""
    num_samples: int
    """The number of samples with a history."""
    num_bad: int
    """The number of stretches in the ledger that could not be read."""

    def samples(self) -> list[SampleHistory]:
        """Return all samples, including duplicates."""
        samples = []
        for entry in self.entries:
            samples += [entry.history, *entry.duplicates]
        return samples


def read_worst(
    run: str | Path,
    num: int = 20,
    *,
    directory: str | Path | None = None,
    tokenizer: Decoder | None = None,
    known: Mapping[tuple[str, int], str] | None = None,
) -> Worst:
    """Return the `num` worst samples. `directory` is the current location of the data; `tokenizer`
    replaces the data's own; `known` are the texts of samples that a verdict names.

    ```python
    from sonde import Run
    from sonde.spikes import read_worst

    with Run("runs/mine") as run:
        spikes = run.spikes()
        for step in range(1, 301):
            losses = [3.0 + 0.1 * ((7 * step + row) % 5) for row in range(8)]
            losses[0] += 6.0 * (step == 250)
            rows = [("train", 8 * step + row) for row in range(8)]
            spikes.observe(step, sum(losses) / 8, sample_ids=rows, sample_losses=losses)
    worst = read_worst("runs/mine", 5).entries[0].history
    assert (worst.dataset, worst.sample) == ("train", 2000)
    ```
    """
    if num < 1:
        raise SettingError(f"num is the number of samples to show, 1 or more, not {num}")
    ledger = read_ledger(Path(run))
    decoder = SampleDecoder(
        ledger.datasets,
        directory=None if directory is None else Path(directory),
        tokenizer=tokenizer,
        known=known,
    )
    entries: dict[object, WorstSample] = {}
    for history in map(ledger.by_content, ledger.worst(num * _LOOKED_AT)):
        decoded = decoder.decode([RankedSample(dataset=history.dataset, sample=history.sample)])[0]
        text = (decoded.source_text, " ".join(decoded.text.split()))
        key = text if any(text) else (history.dataset, history.sample)
        same = entries.setdefault(key, WorstSample(history=history, decoded=decoded))
        if same.history is not history:
            entries[key] = replace(same, duplicates=(*same.duplicates, history))
    worst = tuple(entries.values())[:num]
    return Worst(entries=worst, num_samples=len(ledger), num_bad=ledger.num_bad)
