"""The records of a spike, made, written and understood (docs/formats/spikes.md).

SPIKE        an event has begun: what, where, how far; the steps up to it, with their samples; tokens of the worst ones
SPIKE_END    it is over: its span and peak, and the bad steps that followed the first
SAMPLE       single samples of a step stand out: which, how far, and the losses of their tokens
SPIKE_DATA   which files the datasets are, so that samples can be found again

A thread of its own makes and writes them, so that a training step never waits for a disk or a device. It is started by the first spike and lives until
`close`. What is being written when the process is killed is lost or torn; every record before it is whole (records/append.py). A normal exit of Python waits for it.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any, Final, final, get_type_hints

from sonde.records.append import RecordFile
from sonde.spikes.events import Event
from sonde.spikes.sample_watch import SampleEvent
from sonde.spikes.step_entry import StepEntry, digests_now

SPIKE: Final = "SPIKE"
SPIKE_END: Final = "SPIKE_END"
SPIKE_DATA: Final = "SPIKE_DATA"
SAMPLE: Final = "SAMPLE"
VERSION: Final = 1

_logger = logging.getLogger("sonde")


def event_of(record: Mapping[str, Any]) -> Event:
    """The event of a record. Raises KeyError, TypeError or ValueError when the record is not one of ours."""
    return Event(**{name: kind(record["event"][name]) for name, kind in get_type_hints(Event).items()})


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
        self._submit(SPIKE, event.first_step, partial(_begun, event, self._worst_samples), entries)

    def end(self, event: Event, entries: Sequence[StepEntry], *, over: bool) -> None:
        """An event is over, or was cut off by the end of the run."""
        told = {"over": over, "event": asdict(event)}
        make = lambda entries: {**told, "steps": [entry.as_record() for entry in entries]}  # noqa: E731  it closes over what is told
        self._submit(SPIKE_END, event.first_step, make, entries)

    def samples(self, event: SampleEvent, entry: StepEntry) -> None:
        """Samples of a step stand out."""
        # Their tokens are read now: the step may still be on its way to become a spike, which has its own use for them.
        tokens = {row: entry.token_row(row) for row in event.rows[: self._worst_samples]}
        self._submit(SAMPLE, event.step, lambda _: _outlying(event, entry, tokens), [])

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

    def _submit(
        self, kind: str, step: int, make: Callable[[list[StepEntry]], dict[str, Any]], entries: Sequence[StepEntry]
    ) -> None:
        head = {"type": kind, "version": VERSION, "step": step, "time": time.time(), "rank": self._rank}
        if self._thread is None or self._pid != os.getpid():  # a forked child has no thread
            self._pid = os.getpid()
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sonde-spikes")
            self._writes.clear()
        self._writes = [write for write in self._writes if not write.done()]
        self._writes.append(self._thread.submit(self._write, head, make, list(entries)))

    def _write(
        self, head: dict[str, Any], make: Callable[[list[StepEntry]], dict[str, Any]], entries: list[StepEntry]
    ) -> None:
        if self._data is not None:
            describe, self._data = self._data, None
            self._write_data(describe)
        try:
            record = {**head, **make(entries)}
        except Exception as error:  # noqa: BLE001  a foreign value may fail in any way: the event itself is still told
            _logger.warning("a loss spike is recorded without its samples: %r", error)
            if not entries:
                return
            record = {**head, **make([]), "problem": repr(error)[:500]}
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


def _begun(event: Event, worst: int, entries: list[StepEntry]) -> dict[str, Any]:
    steps = [entry.as_record() for entry in entries]
    tokens = entries[-1].worst_tokens(steps[-1], worst) if entries else []
    return {"event": asdict(event), "generators": digests_now(), "steps": steps, "tokens": tokens}


def _outlying(event: SampleEvent, entry: StepEntry, tokens: Mapping[int, list[float] | None]) -> dict[str, Any]:
    told = entry.as_record()
    ids, losses, counts = told["sample_ids"] or [], told["sample_losses"], told["token_counts"]
    samples = [
        {
            "row": row,
            "sample": ids[row] if row < len(ids) else None,
            "loss": losses[row],
            "expected": expected,
            "z": z,
            "num_tokens": None if counts is None else counts[row],
            "token_losses": tokens.get(row),
        }
        for row, z, expected in zip(event.rows, event.z, event.expected, strict=True)
    ]
    return {"num_samples": len(losses), "limit": event.limit, "samples": samples}
