"""The ledger: the loss history of every sample of a run, written by a background thread
(docs/formats/ledger.md).

    RUN/ledger/rank0.journal-3      samples as they come: key, step, excess; appended
    RUN/ledger/rank0.rows           one row per sample: times seen, sum and last excess, first and
                                    last step; replaced as a whole

The training loop hands over references once per step, which takes 0.5 µs. The thread converts names
to keys, appends a block every 8,192 samples, and merges the journal into the rows when it has grown
large: 1 µs per sample in total.

After a restart, a rollback or kill -9, the ledger equals that of an uninterrupted run: the first
step after a start supersedes everything from that step on, and only what is older than the oldest
checkpoint, and can therefore not be undone, is merged into the rows. Everything that belongs to a
checkpoint is on disk before the checkpoint is (`flush`). Sums are integers, so the order of
addition does not matter.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sonde.records import disk
from sonde.records.files import atomic_file
from sonde.records.layout import RunLayout
from sonde.records.worker import Worker
from sonde.spikes import ledger_blocks as blocks
from sonde.spikes.ledger_log import read_rank

_BATCH: Final = 8192
"""The number of samples that are written together."""
_MIN_FOLD: Final = 1 << 20
"""The minimum number of final samples in the journal before it is merged into the rows."""
_FOLD_SHARE: Final = 8
"""A merge also needs at least one final sample per this many rows."""
_MAX_MARKS: Final = 8
"""If the checkpoints are unknown, the run may go back to any of the last this many calls of
`mark`.
"""

_logger = logging.getLogger("sonde")


def _log_error(error: Exception) -> None:
    _logger.warning("samples were not entered in the ledger: %r", error)


class Ledger:
    """The ledger of one rank. Call `add` once per step, `flush` before a checkpoint, `close` at the
    end. Nothing here raises.
    """

    def __init__(
        self,
        layout: RunLayout,
        rank: int,
        *,
        world_size: int = 1,
        data: Mapping[str, Any] | None = None,
        checkpoints: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        """`data` describes the datasets; `checkpoints` returns the steps that the run may go back
        to.
        """
        self._world_size = world_size
        self._layout = layout
        self._rank = rank
        self._data = data or {}
        self._checkpoints = checkpoints
        self._waiting: list[tuple[int, Any, NDArray[np.float64] | list[float] | None]] = []
        self._num_waiting = 0
        self._last_step: int | None = None
        self._marks: list[int] = []
        self._worker = Worker("sonde-ledger", on_error=_log_error)
        self._journal: _Journal | None = None
        self._pid = os.getpid()
        self._failed = False

    def add(self, step: int, sample_ids: Any, z: NDArray[np.float64] | list[float]) -> None:
        """Add the samples of a step, and how far each was above others of its length."""
        if sample_ids is None:
            return
        if self._last_step is None or step < self._last_step:
            self._waiting.append((step - 1, None, None))  # supersede what came later
        self._last_step = step
        self._waiting.append((step, sample_ids, z))
        self._num_waiting += len(z)
        if self._num_waiting >= _BATCH:
            self._submit()

    def mark(self) -> None:
        """Write everything to disk, because a checkpoint is about to be saved."""
        self.flush()
        if self._last_step is not None:
            self._marks = [*self._marks, self._last_step][-_MAX_MARKS:]

    def flush(self) -> None:
        """Wait until everything is in the file."""
        if self._waiting:
            self._submit()
        self._worker.flush()

    def close(self) -> None:
        """Write everything and end the thread."""
        self.flush()
        self._worker.close()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _submit(self) -> None:
        batch = self._waiting
        self._waiting = []
        self._num_waiting = 0
        if self._pid == os.getpid():  # a forked child must not write to its parent's run
            self._worker.do(partial(self._write, batch))

    def _write(
        self, batch: list[tuple[int, Any, NDArray[np.float64] | list[float] | None]]
    ) -> None:
        try:
            if self._journal is None:
                self._journal = _Journal(self._layout, self._rank, self._data)
                if self._rank == 0:
                    self._rewind_others(batch[0][0])
            self._journal.append(batch)
            if self._journal.num_visits >= self._journal.fold_at:
                self._journal.fold(self._horizon())
        except Exception:
            # A full disk, or invalid names: logged once with the traceback; training continues.
            if not self._failed:
                self._failed = True
                _logger.warning(
                    "the ledger of samples could not be written; training goes on", exc_info=True
                )

    def _rewind_others(self, step: int) -> None:
        """With fewer ranks than before, also supersede what the missing ranks did after `step`."""
        for rank in self._layout.ledger_ranks():
            if rank >= self._world_size:
                other = _Journal(self._layout, rank, {})
                other.append([(step, None, None)])
                other.close()

    def _horizon(self) -> int:
        """Return the step that the run cannot go back before."""
        steps = list(self._checkpoints()) if self._checkpoints is not None else []
        return min(steps or self._marks, default=self._last_step or 0)


class _Journal:
    """The files of one rank, open for writing. Used by one thread."""

    def __init__(self, layout: RunLayout, rank: int, data: Mapping[str, Any]) -> None:
        disk.make_directories(layout.ledger)
        self._layout = layout
        self._rank = rank
        datasets = self._open()
        if data and data != datasets:
            disk.write_all(
                self._descriptor, blocks.encode_document(blocks.NAMES, {"data": dict(data)})
            )

    def _open(self) -> Mapping[str, Any]:
        """Go on with the files as they are. Returns their description of the datasets."""
        known = read_rank(self._layout, self._rank)
        self._keys = known.keys
        self._base_step = known.base_step
        self.num_visits = sum(len(part.keys) for part in known.visits)
        """The number of samples in the journal."""
        self.fold_at = _MIN_FOLD
        """The number of samples in the journal at which the next merge is attempted."""
        self._is_new = not (self.num_visits or known.base)
        path = self._layout.ledger_journal(self._rank, known.generation)
        flags = (
            os.O_WRONLY
            | os.O_APPEND
            | os.O_CREAT
            | getattr(os, "O_NOFOLLOW", 0)
            | getattr(os, "O_CLOEXEC", 0)
        )
        self._descriptor = disk.open_file(path, flags, 0o644)
        return known.datasets

    def append(
        self, batch: list[tuple[int, Any, NDArray[np.float64] | list[float] | None]]
    ) -> None:
        """Write all waiting samples with one system call."""
        encoded: list[bytes] = []
        seen: list[tuple[int, Any, NDArray[np.float64] | list[float]]] = []
        for step, ids, z in batch:
            if z is not None:
                seen.append((step, ids, z))
            elif seen or not self._is_new:
                encoded += [
                    self._encoded(seen),
                    blocks.encode_document(blocks.REWIND, {"step": step}),
                ]
                seen = []
                if step < self._base_step:
                    _logger.warning(
                        "the ledger of samples goes on after step %d, but has samples up to %d that"
                        " it cannot take out",
                        step,
                        self._base_step,
                    )
        encoded.append(self._encoded(seen))
        news = self._keys.news()
        names = [blocks.encode_document(blocks.NAMES, news)] if news else []
        disk.write_all(self._descriptor, b"".join([*names, *encoded]))
        self._is_new = False

    def _encoded(self, seen: list[tuple[int, Any, NDArray[np.float64] | list[float]]]) -> bytes:
        """Encode the samples of several steps as blocks."""
        if not seen:
            return b""
        parts = [ids() if callable(ids) else ids for _, ids, _ in seen]
        counts = [min(len(ids), len(z)) for ids, (_, _, z) in zip(parts, seen, strict=True)]
        parts = [ids[:count] for ids, count in zip(parts, counts, strict=True)]
        if all(type(ids) is list for ids in parts):
            keys, good = self._keys.of([id_ for ids in parts for id_ in ids])
        else:
            keys, good = (
                np.concatenate(column) for column in zip(*map(self._keys.of, parts), strict=True)
            )
        steps = np.repeat(np.array([step for step, _, _ in seen], np.int64), counts)
        z = np.concatenate([z[:count] for (_, _, z), count in zip(seen, counts, strict=True)])
        if not good.any():
            return b""
        self.num_visits += int(good.sum())
        return blocks.encode_visits(blocks.visits(keys[good], steps[good], blocks.whole(z[good])))

    def fold(self, horizon: int) -> None:
        """Merge the visits up to a step into the rows. A crash at any point leaves either the old
        or the new files in force.
        """
        known = read_rank(self._layout, self._rank)
        seen = blocks.together(known.visits)
        later = seen.last_steps > horizon
        share = max(_MIN_FOLD, sum(block.num_rows for block in known.base) // _FOLD_SHARE)
        self.fold_at = self.num_visits + share // 2
        if np.count_nonzero(~later) < share:
            return  # most of it may still be undone
        names = blocks.encode_document(
            blocks.NAMES, {**known.keys.all_names(), "data": known.datasets}
        )
        generation = known.generation + 1
        with atomic_file(self._layout.ledger_journal(self._rank, generation)) as file:
            file.write(names + blocks.encode_visits(seen.part(later)))
        with atomic_file(self._layout.ledger_base(self._rank)) as file:
            last_step = max(known.base_step, horizon)
            file.write(
                blocks.encode_document(
                    blocks.BASE, {"generation": generation, "last_step": last_step}
                )
                + names
            )
            for rows in known.folded(blocks.by_sample(seen.part(~later))):
                file.write(blocks.encode_rows(rows))
        before = self._descriptor
        self._open()
        disk.close(before)
        disk.unlink(self._layout.ledger_journal(self._rank, known.generation))

    def close(self) -> None:
        """Close the journal."""
        disk.close(self._descriptor)
