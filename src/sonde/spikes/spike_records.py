"""The records of a spike, made of the steps in the ring and written in the background
(docs/formats/spikes.md).

    SPIKE        an event has begun: what, where, how far; the steps up to it, with their samples;
                 tokens of the worst ones
    SPIKE_END    it is over: its span and peak, and the bad steps that followed the first
    SAMPLE       single samples of a step are outliers: which, how far, and the losses of their
                 tokens
    SPIKE_DATA   which files the datasets are, so that samples can be found again

A background thread creates and writes the records, so that a training step never waits for a disk
or a device. If the process is killed, the record being written is lost or torn; all earlier records
are intact (records/append.py).
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final, TypeAlias

from sonde.records.append import RecordFile
from sonde.records.worker import Worker
from sonde.spikes.detectors import Event
from sonde.spikes.generator_digests import digests_now
from sonde.spikes.held_values import is_tensor
from sonde.spikes.sample_watch import SampleEvent
from sonde.spikes.step_entry import StepEntry

SPIKE: Final = "SPIKE"
SPIKE_END: Final = "SPIKE_END"
SPIKE_DATA: Final = "SPIKE_DATA"
SAMPLE: Final = "SAMPLE"
VERSION: Final = 1

_logger = logging.getLogger("sonde")


def _log_error(error: Exception) -> None:
    _logger.warning("a spike record was not written: %r", error)


_Make: TypeAlias = Callable[[list[StepEntry]], dict[str, Any]]
"""Makes the contents of a record from the steps that belong to it."""


class SpikeWriter:
    """Writes the records of a recorder, in a thread of its own. If the values of a step cannot be
    read, they are left out.
    """

    def __init__(
        self, file: RecordFile, *, rank: int, worst_samples: int, data: Mapping[str, Any]
    ) -> None:
        """`data` describes the datasets; it is written before the first record."""
        self._file = file
        self._rank = rank
        self._worst_samples = worst_samples
        self._data = data
        self.worker = Worker("sonde-spikes", on_error=_log_error)
        """Creates and writes the records."""

    def begin(self, event: Event, entries: Iterable[StepEntry]) -> None:
        """Write an event that begins with the last entry, with the tokens of its worst samples."""

        def make(entries: list[StepEntry]) -> dict[str, Any]:
            steps = [entry.as_record() for entry in entries]
            if entries:
                tokens = entries[-1].worst_tokens(steps[-1]["sample_losses"], self._worst_samples)
            else:
                tokens = []
            return {
                "event": asdict(event),
                "generators": digests_now(),
                "steps": steps,
                "tokens": tokens,
            }

        self._write(SPIKE, event.first_step, make, entries)

    def end(self, event: Event, entries: Iterable[StepEntry], *, over: bool) -> None:
        """Write an event that is over, or was cut off by the end of the run."""

        def make(entries: list[StepEntry]) -> dict[str, Any]:
            return {
                "over": over,
                "event": asdict(event),
                "steps": [entry.as_record() for entry in entries],
            }

        self._write(SPIKE_END, event.first_step, make, entries)

    def samples(self, event: SampleEvent, entry: StepEntry) -> None:
        """Write the outlying samples of a step."""
        # Read their tokens now, if no device holds them: the step may still become a spike, which
        # needs them itself.
        is_here = not is_tensor(entry.token_losses) or entry.token_losses.is_cpu
        if is_here:
            tokens = {row: entry.token_row(row) for row in event.rows[: self._worst_samples]}
        else:
            tokens = {}

        def make(_: list[StepEntry]) -> dict[str, Any]:
            record = entry.as_record()
            ids = record["sample_ids"] or []
            losses = record["sample_losses"]
            counts = record["token_counts"]
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
            return {
                "num_samples": len(losses),
                "measure": event.measure,
                "limit": event.limit,
                "samples": samples,
            }

        self._write(SAMPLE, event.step, make)

    def _write(self, kind: str, step: int, make: _Make, entries: Iterable[StepEntry] = ()) -> None:
        head = self._head(kind, step=step)
        self.worker.do(partial(self._write_now, head, make, list(entries)))

    def _head(self, kind: str, **place: int) -> dict[str, Any]:
        return {"type": kind, "version": VERSION, **place, "time": time.time(), "rank": self._rank}

    def _write_now(self, head: dict[str, Any], make: _Make, entries: list[StepEntry]) -> None:
        data = self._data
        self._data = {}
        if data:
            self._file.append({**self._head(SPIKE_DATA), "datasets": data})
        try:
            record = {**head, **make(entries)}
        except Exception as error:  # noqa: BLE001
            # a user's value may fail in any way: the event itself is still written
            _logger.warning("a loss spike is recorded without its samples: %r", error)
            if not entries:
                return
            record = {**head, **make([]), "problem": repr(error)[:500]}
        self._file.append(record)
        for entry in entries:
            entry.token_losses = None  # they are large
