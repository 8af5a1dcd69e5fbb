"""The journal of a run: the exact results of every update, and its events
(docs/formats/records.md).

    {"type":"STEP","step":7,"epoch":1,"loss":5.25,"weight":1024.0,"grad_norm":0.5,"lr":0.001}

Rank 0 writes one small record per update. The loss is the mean over all ranks, stored so that it
reads back bit for bit: a replay compares against it. A step that was repeated after a restart has
two records, and the last one counts.

    for event in read_events(run, "start", "resume"): …
    append_event(run, "rollback", step=1734)      # from outside; a process that has the run open
                                                  # calls `Run.event`

Events are what happens in the life of a run: a start, a checkpoint, a skip, a rollback. Each rank
has its own file.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from sonde.records.append import RecordFile
from sonde.records.layout import EVENTS, STEPS, RunLayout
from sonde.records.reader import Record, read_records

STEP: Final = "STEP"
"""The `type` of the records of updates."""
RECORDER_NOTICE: Final = "recorder_notice"
"""The event of what a recorder told: `what`, the `message`, and `since` which step it holds."""


def read_steps(run: str | Path) -> "Steps":
    """Read all updates recorded in the run directory `run`; empty if there are none."""
    found: dict[int, StepRecord] = {}
    num_bad = 0
    for file in RunLayout(Path(run)).record_files(STEPS):
        reading = read_records(file.path)
        for record in reading:
            if record.get("type") != STEP:
                continue
            try:
                step = msgspec.convert(record, StepRecord, strict=False)
                found[step.step] = step
            except msgspec.ValidationError:
                num_bad += 1
        num_bad += reading.num_bad
    return Steps(by_number=dict(sorted(found.items())), num_bad=num_bad)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One update."""

    step: int
    """Its number; the first is 1."""
    epoch: int = 1
    """The epoch it belongs to, counted from 1; 1 in a loop that does not say."""
    loss: float
    """Mean loss per target token over all ranks."""
    weight: float
    """Number of target tokens over all ranks."""
    grad_norm: float | None = None
    """Global gradient norm before clipping."""
    lr: float
    """The learning rate."""
    skipped: str | None = None
    """Why the weights were not updated; None if they were."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Values logged by the task and the callbacks, by name."""

    def as_record(self) -> dict[str, Any]:
        """Return the record as it is written. What is not known or empty is left out."""
        record: dict[str, Any] = {
            "type": STEP,
            "step": self.step,
            "epoch": self.epoch,
            "loss": self.loss,
            "weight": self.weight,
            "grad_norm": self.grad_norm,
            "lr": self.lr,
        }
        if self.skipped is not None:
            record["skipped"] = self.skipped
        if self.values:
            record["values"] = self.values
        return record


class Steps(NamedTuple):
    """The updates of a run."""

    by_number: Mapping[int, StepRecord]
    """The updates by step number, in order."""
    num_bad: int
    """Number of lines and records that could not be parsed."""


def event_record(event: str, rank: int, details: Mapping[str, object]) -> Record:
    """Return an event record with the current time; `details` may override the time."""
    return {"type": "EVENT", "time": time.time(), "rank": rank, "event": event, **details}


def read_events(run: Path, *names: str, rank: int = 0) -> Iterator[Record]:
    """Yield a rank's events with these names, oldest first; none if the file does not exist."""
    path = RunLayout(run).record_file(EVENTS, rank)
    for record in read_records(path) if path.exists() else ():
        if record.get("event") in names:
            yield record


def append_event(run: Path, event: str, **details: object) -> bool:
    """Append an event to a run, synced to disk on return; return False if it could not be
    written.
    """
    with RecordFile(RunLayout(run).record_file(EVENTS, 0)) as file:
        return file.append(event_record(event, 0, details)) and file.sync()
