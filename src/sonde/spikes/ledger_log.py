"""The ledger of a run, read back: every sample's history, merged over ranks, and the worst of them. Needs no torch.

    history = read_ledger(Path("runs/x"))
    for sample in history.worst(20): print(sample.dataset, sample.sample, sample.mean, sample.trend)

A damaged block is passed over and counted. What a restart or a rollback superseded is left out.
"""

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.errors import RunError
from sonde.records.files import check_folder, open_regular
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.spikes.ledger_blocks import (
    BASE,
    NAMES,
    OLD_ROWS,
    REWIND,
    ROWS,
    UNIT,
    VISITS,
    Block,
    Keys,
    Rows,
    Whole,
    decode_rows,
    decode_visits,
    merged,
    no_rows,
    rows_of_visits,
    scan_blocks,
)
from sonde.spikes.sample_keys import SampleKeys

HIGH: Final = 3.0
"""So many deviations above samples of its length a sample is not learnt,"""
LOW: Final = 2.0
"""and below so many it is."""
LEARNT: Final = "learnt"
FORGOTTEN: Final = "forgotten"
NEVER_LEARNT: Final = "never learnt"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SampleHistory:
    """What a run knows of one sample."""

    dataset: str
    """Name of its dataset; empty when the loop gave none."""
    sample: int | str
    """Its number there, or what the loop called it, or `#` and a hash of its content."""
    count: int
    """How often it was seen."""
    mean: float
    """How far above samples of its length it was, in deviations: the mean over all times,"""
    last: float
    """and the last time."""
    first_step: int
    """When it was first seen,"""
    last_step: int
    """and last."""

    @property
    def trend(self) -> str:
        """LEARNT, FORGOTTEN, NEVER_LEARNT, or empty where there is nothing to say."""
        if self.count < 2:
            return ""
        before = (self.mean * self.count - self.last) / (self.count - 1)
        if before >= HIGH:
            return LEARNT if self.last < LOW else NEVER_LEARNT if self.last >= HIGH else ""
        return FORGOTTEN if before < LOW and self.last >= HIGH else ""


@final
@dataclass(frozen=True, kw_only=True)
class History:
    """All samples of a run."""

    folded: Rows
    """A row a sample, as far as they were put together on the disk,"""
    recent: Rows
    """and those of the journal, which may have a row for the same sample."""
    keys: SampleKeys
    """What the keys mean."""
    datasets: Mapping[str, Any]
    """What the run said about its data (data_files.py)."""
    num_bad: int
    """Stretches of the files that could not be read."""

    def __len__(self) -> int:
        return len(self.folded) + len(self.recent) - len(self._both[0])

    @cached_property
    def rows(self) -> Rows:
        """A row a sample."""
        return merged(self.folded, self.recent)

    def worst(self, num: int) -> list[SampleHistory]:
        """The samples that were farthest above others of their length, in the mean over all times; worst first."""
        means = self._means()
        num = min(max(num, 0), len(means))
        chosen = np.argpartition(means, len(means) - num)[len(means) - num :] if num else np.zeros(0, np.intp)
        # Samples of the journal stand behind the others, and only there if they are in both.
        in_folded, in_recent = self._both
        recent = np.sort(chosen[chosen >= len(self.folded)]) - len(self.folded)
        again = np.searchsorted(in_recent, recent)
        again = again[in_recent[np.minimum(again, len(in_recent) - 1)] == recent] if len(in_recent) else again[:0]
        folded = np.sort(np.concatenate([chosen[chosen < len(self.folded)], in_folded[again]]))
        rows = merged(self.folded.part(folded), self.recent.part(recent))
        means = rows.sums / (rows.counts * float(UNIT))
        return [self._history(rows, int(place), float(means[place])) for place in np.lexsort((rows.keys, -means))[:num]]

    @cached_property
    def _both(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The places of samples in the folded rows, and in the recent ones, that are in both."""
        if not len(self.folded):
            return np.zeros(0, np.intp), np.zeros(0, np.intp)
        places = np.minimum(np.searchsorted(self.folded.keys, self.recent.keys), len(self.folded) - 1)
        recent = np.flatnonzero(self.folded.keys[places] == self.recent.keys)
        return places[recent], recent

    def _means(self) -> NDArray[np.float64]:
        """The mean of every sample: the folded rows, then the recent ones; of those in both only there."""
        in_folded, in_recent = self._both
        sums, counts = self.recent.sums.astype(np.int64), self.recent.counts.copy()
        sums[in_recent] += self.folded.sums[in_folded]
        counts[in_recent] += self.folded.counts[in_folded]
        means = np.concatenate([self.folded.sums / self.folded.counts, sums / counts])
        means[in_folded] = -np.inf
        return means

    def _history(self, rows: Rows, place: int, mean: float) -> SampleHistory:
        dataset, sample = self.keys.name_of(int(rows.keys[place]))
        return SampleHistory(
            dataset=dataset,
            sample=sample,
            count=int(rows.counts[place]),
            mean=mean,
            last=float(rows.lasts[place]) / UNIT,
            first_step=int(rows.first_steps[place]),
            last_step=int(rows.last_steps[place]),
        )


def read_ledger(run: Path) -> History:
    """The ledger of the run directory `run`; empty when it kept none."""
    layout = RunLayout(run)
    ranks = layout.ledger_ranks()
    if not ranks:
        read_manifest(run)  # refuses what is no run
    check_folder(layout.ledger)
    folded, recent, keys, num_bad = no_rows(), no_rows(), SampleKeys(), 0
    datasets: dict[str, Any] = {}
    for rank in ranks:
        part = read_rank(layout, rank)
        datasets |= part.datasets
        num_bad += part.num_bad
        folded = merged(folded, _with_codes(part.base_rows(), part.keys, keys))
        recent = merged(recent, _with_codes(part.journal_rows(), part.keys, keys))
    return History(folded=folded, recent=recent, keys=keys, datasets=datasets, num_bad=num_bad)


def worst_samples(run: Path, num: int = 20) -> list[SampleHistory]:
    """The worst samples of a run."""
    return read_ledger(run).worst(num)


@final
class RankLedger:
    """What the files of one rank say."""

    def __init__(self) -> None:
        self.base: list[Rows] = []
        self.visits: list[tuple[Keys, Whole, Whole]] = []
        self.keys = SampleKeys()
        self.datasets: dict[str, Any] = {}
        self.generation = 0
        """The journal that goes on after the base."""
        self.base_step = -1
        """The last step that the base has."""
        self.num_bad = 0

    def base_rows(self) -> Rows:
        """The rows of the base."""
        columns = [np.concatenate(parts) for parts in zip(*(rows.columns() for rows in self.base), strict=True)]
        self.base.clear()
        return Rows(*columns) if columns else no_rows()

    def journal_rows(self, *, up_to: int | None = None) -> Rows:
        """The visits of the journal, up to a step or all, put together."""
        keys, steps, excesses = self.all_visits()
        wanted = slice(None) if up_to is None else steps <= up_to
        return rows_of_visits(keys[wanted], steps[wanted], excesses[wanted])

    def all_visits(self) -> tuple[Keys, Whole, Whole]:
        """The visits of the journal, in order of time."""
        if not self.visits:
            return np.zeros(0, np.uint64), np.zeros(0, np.int32), np.zeros(0, np.int32)
        keys, steps, excesses = (np.concatenate(column) for column in zip(*self.visits, strict=True))
        return keys, steps, excesses

    def take(self, block: Block | None) -> None:
        """Take in a block; what cannot be understood is counted."""
        try:
            if block is None:
                raise ValueError("damaged")
            if block.kind in (ROWS, OLD_ROWS):
                self.base.append(decode_rows(block))
            elif block.kind == VISITS:
                self.visits.append(decode_visits(block))
            elif block.kind in (NAMES, BASE, REWIND):
                self._take_document(block.kind, json.loads(bytes(block.payload)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            self.num_bad += 1

    def _take_document(self, kind: int, document: Any) -> None:
        if kind == NAMES:
            self.keys.learn(document)
            self.datasets |= dict(document.get("data") or {})
        elif kind == BASE:
            self.generation, self.base_step = int(document["generation"]), int(document["last_step"])
        elif kind == REWIND:
            self.rewind(int(document["step"]))

    def rewind(self, step: int) -> None:
        """Forget the visits after a step; the base cannot be parted any more."""
        kept = [(visits, visits[1] <= step) for visits in self.visits]
        self.visits = [
            (keys[keep], steps[keep], excesses[keep]) for (keys, steps, excesses), keep in kept if keep.any()
        ]


def read_rank(layout: RunLayout, rank: int) -> RankLedger:
    """The files of one rank; RunError when one cannot be opened."""
    ledger = RankLedger()
    for path in (layout.ledger_base(rank), None):
        path = path or layout.ledger_journal(rank, ledger.generation)
        for block in scan_file(path):
            ledger.take(block)
    return ledger


def scan_file(path: Path) -> list[Block | None]:
    """The blocks of a file, over a map of it; none when there is no file."""
    try:
        with open_regular(path) as file:
            if not os.fstat(file.fileno()).st_size:
                return []
            return list(scan_blocks(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {path}", cause=error.strerror or str(error)) from error


def _with_codes(rows: Rows, theirs: SampleKeys, ours: SampleKeys) -> Rows:
    """The rows of a rank, their datasets numbered as for all ranks."""
    changed = {number: ours.code(name) for name, number in theirs.datasets.items()}
    ours.texts |= theirs.texts
    if all(number == code for number, code in changed.items()):
        return rows
    table = np.arange(1 << 16, dtype=np.uint64)
    for number, code in changed.items():
        table[number] = code
    keys = (table[(rows.keys >> np.uint64(48)).astype(np.intp)] << np.uint64(48)) | (
        rows.keys & np.uint64((1 << 48) - 1)
    )
    order = np.argsort(keys, kind="stable")
    return Rows(keys[order], *(column[order] for column in rows.columns()[1:]))
