"""Writes spike records in a thread of its own, so that a training step never waits for a disk or a device.

The thread is started by the first spike and lives until `close`. What is being written when the process is killed is lost or
torn; every record before it is whole (records/append.py). A normal exit of Python waits for it.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, final

from sonde.records.append import RecordFile
from sonde.spikes.events import Event
from sonde.spikes.sample_watch import SampleEvent
from sonde.spikes.spike_records import SPIKE_DATA, VERSION, end_record, sample_record, spike_record
from sonde.spikes.step_entry import StepEntry

_logger = logging.getLogger("sonde")


@final
class SpikeWriter:
    """Where a recorder's events go."""

    def __init__(
        self, file: RecordFile, *, rank: int, worst_samples: int, data: Callable[[], Mapping[str, Any]]
    ) -> None:
        """`data` describes the datasets; it is called once, before the first spike is written."""
        self._file = file
        self._rank = rank
        self._worst_samples = worst_samples
        self._data: Callable[[], Mapping[str, Any]] | None = data
        self._thread: ThreadPoolExecutor | None = None
        self._writes: list[Future[None]] = []
        self._pid = os.getpid()

    def begin(self, event: Event, entries: Sequence[StepEntry]) -> None:
        """An event begins with the last of `entries`."""
        make = partial(spike_record, event, rank=self._rank, time=time.time(), worst=self._worst_samples)
        self._submit(make, entries)

    def end(self, event: Event, entries: Sequence[StepEntry], *, over: bool) -> None:
        """An event is over, or was cut off."""
        self._submit(partial(end_record, event, rank=self._rank, time=time.time(), over=over), entries)

    def samples(self, event: SampleEvent, entry: StepEntry) -> None:
        """Samples of a step stand out."""
        # Their tokens are read now: the step may still be on its way to become a spike, which has its own use for them.
        tokens = {row: entry.token_row(row) for row in event.rows[: self._worst_samples]}
        record = partial(sample_record, event, entry, tokens, rank=self._rank, time=time.time())
        self._submit(lambda _: record(), [])

    def flush(self) -> None:
        """Wait until everything is written."""
        for write in self._writes:
            write.result()
        self._writes.clear()

    def close(self) -> None:
        """Write everything and end the thread."""
        self.flush()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _submit(self, make: Callable[..., dict[str, Any]], entries: Sequence[StepEntry]) -> None:
        if self._thread is None or self._pid != os.getpid():  # a forked child has no thread
            self._pid = os.getpid()
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sonde-spikes")
            self._writes.clear()
        self._writes = [write for write in self._writes if not write.done()]
        self._writes.append(self._thread.submit(self._write, make, entries))

    def _write(self, make: Callable[..., dict[str, Any]], entries: Sequence[StepEntry]) -> None:
        if self._data is not None:
            describe, self._data = self._data, None
            self._write_data(describe)
        try:
            record = make(list(entries))
        except Exception as error:  # noqa: BLE001  a foreign value may fail in any way: the event itself is still told
            _logger.warning("a loss spike is recorded without its samples: %r", error)
            if not entries:
                return
            record = {**make([]), "problem": repr(error)[:500]}
        self._file.append(record)
        for entry in entries:
            entry.forget_tokens()

    def _write_data(self, describe: Callable[[], Mapping[str, Any]]) -> None:
        try:
            datasets = dict(describe())
        except Exception as error:  # noqa: BLE001  a dataset of the user's own may raise anything
            _logger.warning("spikes are recorded without a description of their data: %r", error)
            return
        if datasets:
            record = {"type": SPIKE_DATA, "version": VERSION, "time": time.time(), "rank": self._rank}
            self._file.append({**record, "datasets": datasets})
