"""The ledger of a run, read back: every sample's history, merged over ranks, and the worst of them. Needs no torch.

    history = read_ledger(Path("runs/x"))
    for sample in history.worst(20): print(sample.dataset, sample.sample, sample.mean, sample.trend)

A damaged block is passed over and counted. What a restart or a rollback superseded is left out.
"""

import json
import mmap
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from sonde.errors import RunError
from sonde.records.files import check_folder, open_regular
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.spikes.ledger_blocks import (
    BASE,
    NAMES,
    PLAIN_VISITS,
    REWIND,
    UNIT,
    VISITS,
    Block,
    Rows,
    Visits,
    decode_rows,
    decode_visits,
    in_order,
    merged,
    rows_of_visits,
    scan_blocks,
)
from sonde.spikes.sample_keys import SampleKeys

HIGH: Final = 3.0
"""So many deviations above samples of its length a sample is not learnt,"""
LOW: Final = 2.0
"""and below this many it is."""
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

    rows: Rows
    """A row a sample."""
    keys: SampleKeys
    """What the keys mean."""
    datasets: Mapping[str, Any]
    """What the run said about its data (data_files.py)."""
    num_bad: int
    """Stretches of the files that could not be read."""

    def __len__(self) -> int:
        return len(self.rows)

    def worst(self, num: int) -> list[SampleHistory]:
        """The samples that were farthest above others of their length, in the mean over all times; worst first."""
        num = min(max(num, 0), len(self))
        if not num:
            return []
        means = self.rows.sums / self.rows.counts
        places = np.argpartition(means, len(self) - num)[len(self) - num :]
        places = places[np.lexsort((places, -means[places]))]
        return [self._history(int(place), float(means[place]) / UNIT) for place in places]

    def _history(self, place: int, mean: float) -> SampleHistory:
        rows = self.rows
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
    rows, keys, num_bad = rows_of_visits(in_order([])), SampleKeys(), 0
    datasets: dict[str, Any] = {}
    for rank in ranks:
        part = read_rank(layout, rank)
        datasets |= part.datasets
        found, num_bad_rows = decode_rows(part.base)
        num_bad += part.num_bad + num_bad_rows
        found = merged(found, rows_of_visits(in_order(part.visits)))
        rows = merged(rows, _with_codes(found, part.keys, keys))
    return History(rows=rows, keys=keys, datasets=datasets, num_bad=num_bad)


@final
class RankLedger:
    """What the files of one rank say."""

    def __init__(self, blocks: Iterable[Block | None] = ()) -> None:
        self.base: list[Block] = []
        """Blocks of rows."""
        self.visits: list[Visits] = []
        """The visits of the journal, in order of time."""
        self.keys = SampleKeys()
        self.datasets: dict[str, Any] = {}
        self.generation = 0
        """The journal that goes on after the base."""
        self.base_step = -1
        """The last step that the base has."""
        self.num_bad = 0
        self.take(blocks)

    def take(self, blocks: Iterable[Block | None]) -> None:
        """Take in blocks; what cannot be understood is counted."""
        for block in blocks:
            try:
                if block is None:
                    self.num_bad += 1
                elif block.has_rows:
                    self.base.append(block)
                elif block.kind in (VISITS, PLAIN_VISITS):
                    self.visits.append(decode_visits(block))
                elif block.kind in (NAMES, BASE, REWIND):
                    self._take_document(block.kind, json.loads(bytes(block.payload)))
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error):
                self.num_bad += 1

    def _take_document(self, kind: int, document: Any) -> None:
        if kind == NAMES:
            self.keys.learn(document)
            self.datasets |= dict(document.get("data") or {})
        elif kind == BASE:
            self.generation, self.base_step = int(document["generation"]), int(document["last_step"])
        else:
            step = int(document["step"])  # the base cannot be parted any more
            self.visits = [visits.part(visits.steps <= step) for visits in self.visits]


def read_rank(layout: RunLayout, rank: int) -> RankLedger:
    """The files of one rank; RunError when one cannot be opened."""
    ledger = RankLedger(scan_file(layout.ledger_base(rank)))
    ledger.take(scan_file(layout.ledger_journal(rank, ledger.generation)))
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
    table[list(changed)] = list(changed.values())
    number, rest = rows.keys >> np.uint64(48), rows.keys & np.uint64((1 << 48) - 1)
    rows = Rows((table[number.astype(np.intp)] << np.uint64(48)) | rest, *rows.columns()[1:])
    return rows.part(np.argsort(rows.keys, kind="stable"))
