"""The ledger: what every sample of a run has lost so far, kept beside the training by a thread of its own (docs/formats/ledger.md).

    RUN/ledger/rank0.journal-3      samples as they come: key, step, excess; appended
    RUN/ledger/rank0.rows           a row a sample: times seen, sum and last excess, first and last step; replaced whole

The loop hands over references, once a step: 0.5 µs. The thread makes keys of names, appends a block every 8,192 samples, and folds the journal into
the rows when it has grown large: 1 µs a sample for all of it.

After a restart, a rollback or kill -9 the ledger equals that of a run that was never interrupted: the first step that a start shows supersedes
everything from that step on, and what is older than the oldest checkpoint, to which nobody can go back, is what goes into the rows. All that belongs to a
checkpoint is on the disk before the checkpoint is (`flush`). Sums are of whole numbers, so nothing depends on when they were added up.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.records import disk
from sonde.records.atomic import atomic_file
from sonde.records.layout import RunLayout
from sonde.spikes.ledger_blocks import (
    BASE,
    MAX_ROWS,
    NAMES,
    REWIND,
    UNIT,
    VISITS,
    Rows,
    encode_block,
    encode_columns,
    encode_rows,
    merged,
)
from sonde.spikes.ledger_log import RankLedger, read_rank, scan_file

_BATCH: Final = 8192
"""Samples that are written together."""
_MIN_FOLD: Final = 1 << 20
"""A journal with fewer samples is not folded into the rows."""
_MOST: Final = 32_767
_MAX_MARKS: Final = 8
"""Where checkpoints lie is not known, as many of the last calls of `mark` may be gone back to."""

_logger = logging.getLogger("sonde")


@final
class Ledger:
    """The ledger of one rank. `add` once a step; `flush` before a checkpoint; `close` at the end. Nothing here raises."""

    def __init__(
        self,
        layout: RunLayout,
        rank: int,
        *,
        world_size: int = 1,
        data: Callable[[], Mapping[str, Any]] | None = None,
        checkpoints: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        """`data` describes the datasets; `checkpoints` are the steps that the run may go back to."""
        self._world_size = world_size
        self._layout = layout
        self._rank = rank
        self._data = data
        self._checkpoints = checkpoints
        self._waiting: list[tuple[int, Any, NDArray[np.float64] | None]] = []
        self._num_waiting = 0
        self._last_step: int | None = None
        self._marks: list[int] = []
        self._thread: ThreadPoolExecutor | None = None
        self._writes: list[Future[None]] = []
        self._journal: _Journal | None = None
        self._pid = os.getpid()
        self._failed = False

    def add(self, step: int, sample_ids: Any, z: NDArray[np.float64]) -> None:
        """The samples of a step, and how far each was above others of its length."""
        if sample_ids is None:
            return
        if self._last_step is None or step < self._last_step:
            self._waiting.append((step - 1, None, None))  # what came later is superseded
        self._last_step = step
        self._waiting.append((step, sample_ids, z))
        self._num_waiting += len(z)
        if self._num_waiting >= _BATCH:
            self._submit()

    def mark(self) -> None:
        """A checkpoint is about to be saved: everything so far goes to the disk first."""
        self.flush()
        if self._last_step is not None:
            self._marks = [*self._marks, self._last_step][-_MAX_MARKS:]

    def flush(self) -> None:
        """Wait until everything is in the file."""
        if self._waiting:
            self._submit()
        for write in self._writes:
            write.result()
        self._writes.clear()

    def close(self) -> None:
        """Write everything and end the thread."""
        self.flush()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _submit(self) -> None:
        batch, self._waiting, self._num_waiting = self._waiting, [], 0
        if self._pid != os.getpid():
            return  # a forked child: the run is its parent's
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sonde-ledger")
        self._writes = [write for write in self._writes if not write.done()]
        self._writes.append(self._thread.submit(self._write, batch))

    def _write(self, batch: list[tuple[int, Any, NDArray[np.float64] | None]]) -> None:
        try:
            if self._journal is None:
                self._journal = _Journal(self._layout, self._rank, self._data)
                if self._rank == 0:
                    self._rewind_others(batch[0][0])
            self._journal.append(batch)
            if self._journal.num_visits >= max(_MIN_FOLD, self._journal.num_rows // 4, self._journal.wait_for):
                self._journal.fold(self._horizon())
        except Exception:
            # A full disk, or names that are not what they should be: told once, with the trace; training goes on.
            if not self._failed:
                self._failed = True
                _logger.warning("the ledger of samples could not be written; training goes on", exc_info=True)

    def _rewind_others(self, step: int) -> None:
        """With fewer ranks than before: what those that are gone did after a step is superseded too."""
        for rank in self._layout.ledger_ranks():
            if rank >= self._world_size:
                other = _Journal(self._layout, rank, None)
                other.append([(step, None, None)])
                other.close()

    def _horizon(self) -> int:
        """The step that nobody can go back before."""
        steps = list(self._checkpoints()) if self._checkpoints is not None else []
        steps = steps or self._marks
        return min(steps) if steps else self._last_step or 0


@final
class _Journal:
    """The files of one rank, open for writing. Used by one thread."""

    def __init__(self, layout: RunLayout, rank: int, data: Callable[[], Mapping[str, Any]] | None) -> None:
        disk.make_directories(layout.ledger)
        known = read_rank(layout, rank)
        self._layout, self._rank = layout, rank
        self._keys = known.keys
        self._generation = known.generation
        self._base_step = known.base_step
        self.num_visits = sum(len(keys) for keys, _, _ in known.visits)
        """Samples in the journal."""
        self.num_rows = sum(map(len, known.base))
        """Rows in the base."""
        self.wait_for = 0
        """Samples to wait for before it is tried again to fold the journal."""
        self._is_new = not (self.num_visits or self.num_rows)
        self._descriptor = self._open()
        described = dict(data()) if data is not None else {}
        if described and described != known.datasets:
            disk.write_all(self._descriptor, _document(NAMES, {"data": described}))
        self._datasets = known.datasets | described

    def append(self, batch: list[tuple[int, Any, NDArray[np.float64] | None]]) -> None:
        """Write down what waited, with one system call."""
        blocks: list[bytes] = []
        seen: list[tuple[int, Any, NDArray[np.float64]]] = []
        for step, ids, z in batch:
            if z is not None:
                seen.append((step, ids, z))
            elif seen or not self._is_new:
                blocks += [self._visits(seen), _document(REWIND, {"step": step})]
                seen = []
                if step < self._base_step:
                    _logger.warning("the ledger of samples goes on after step %d, but has samples up to %d that it cannot take out", step, self._base_step)  # fmt: skip
        blocks.append(self._visits(seen))
        news = self._keys.news()
        names = [_document(NAMES, news)] if news else []
        disk.write_all(self._descriptor, b"".join([*names, *blocks]))
        self._is_new = False

    def _visits(self, seen: list[tuple[int, Any, NDArray[np.float64]]]) -> bytes:
        """The samples of several steps as blocks."""
        if not seen:
            return b""
        parts = [ids() if callable(ids) else ids for _, ids, _ in seen]
        counts = [min(len(ids), len(z)) for ids, (_, _, z) in zip(parts, seen, strict=True)]
        parts = [ids[:count] for ids, count in zip(parts, counts, strict=True)]
        if all(type(ids) is list for ids in parts):
            keys, good = self._keys.of([one for ids in parts for one in ids])
        else:
            keys, good = (np.concatenate(column) for column in zip(*map(self._keys.of, parts), strict=True))
        steps = np.repeat(np.array([step for step, _, _ in seen], np.int64), counts)
        z = np.concatenate([z[:count] for (_, _, z), count in zip(seen, counts, strict=True)])
        self.num_visits += int(good.sum())
        return encode_columns(VISITS, (keys[good], steps[good], _whole(z[good]))) if good.any() else b""

    def fold(self, horizon: int) -> None:
        """Put the visits up to a step into the rows. A crash at any point leaves the old files in force, or the new."""
        known = RankLedger()
        journal = self._layout.ledger_journal(self._rank, self._generation)
        for block in scan_file(journal):
            known.take(block)
        keys, steps, excesses = known.all_visits()
        later = steps > horizon
        self.num_visits = len(keys)
        if later.sum() * 2 > len(keys):
            self.wait_for = len(keys) * 3 // 2  # most of it may still be taken back
            return
        names = _document(NAMES, {**self._keys.all_names(), "data": self._datasets})
        rest = encode_columns(VISITS, (keys[later], steps[later], excesses[later])) if later.any() else b""
        generation = self._generation + 1
        with atomic_file(self._layout.ledger_journal(self._rank, generation)) as file:
            file.write(names + rest)
        base_step = max(self._base_step, horizon)
        with atomic_file(self._layout.ledger_base(self._rank)) as file:
            file.write(_document(BASE, {"generation": generation, "last_step": base_step}) + names)
            self.num_rows = 0
            for rows in self._folded(known.journal_rows(up_to=horizon)):
                file.write(encode_rows(rows))
                self.num_rows += len(rows)
        disk.close(self._descriptor)
        disk.unlink(journal)
        self._generation, self._base_step, self.num_visits = generation, base_step, int(later.sum())
        self._descriptor = self._open()

    def close(self) -> None:
        """Close the journal."""
        disk.close(self._descriptor)

    def _folded(self, new: Rows) -> Iterator[Rows]:
        """The rows of the base with new ones put in, a block at a time."""
        place, known = 0, RankLedger()
        for block in scan_file(self._layout.ledger_base(self._rank)):
            known.take(block)
            if known.base:
                old = known.base.pop()
                end = int(np.searchsorted(new.keys, old.keys[-1], "right"))
                yield merged(old, new.part(slice(place, end)))
                place = end
        for start in range(place, len(new), MAX_ROWS):
            yield new.part(slice(start, start + MAX_ROWS))

    def _open(self) -> int:
        path = self._layout.ledger_journal(self._rank, self._generation)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        return disk.open_file(path, flags, 0o644)


def _whole(z: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.nan_to_num(np.rint(z * UNIT), nan=_MOST, posinf=_MOST, neginf=-_MOST).clip(-_MOST, _MOST).astype(np.int64)


def _document(kind: int, document: Mapping[str, Any]) -> bytes:
    return encode_block(kind, json.dumps(document).encode())
