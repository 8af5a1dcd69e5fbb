"""What every update did, exactly: one small record each, written by rank 0 (docs/formats/records.md).

    {"type":"STEP","step":7,"epoch":1,"loss":5.25,"weight":1024.0,"grad_norm":0.5,"lr":0.001}

The loss is the mean over all ranks, as a float that reads back to the bit: a replay compares against it. A step that was made again
after a restart has two records, and the last one counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

import msgspec

from sonde.records.layout import STEPS, RunLayout
from sonde.records.reader import read_records

STEP: Final = "STEP"
"""The `type` of these records."""


def read_steps(run: str | Path) -> "Steps":
    """All updates that the run directory `run` tells of; none when it recorded none."""
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


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One update."""

    step: int
    """Its number: the first is 1."""
    epoch: int
    """The epoch it belongs to, from 1."""
    loss: float
    """Mean loss per target token over all ranks."""
    weight: float
    """Target tokens over all ranks."""
    grad_norm: float | None = None
    """Global gradient norm before clipping."""
    lr: float
    """The learning rate."""
    skipped: str | None = None
    """Why the weights did not move; None when they did."""
    values: Mapping[str, float] = field(default_factory=dict)
    """What the task and the callbacks logged in it, by name."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """The updates of a run."""

    by_number: Mapping[int, StepRecord]
    """In order."""
    num_bad: int
    """Lines and records that could not be understood."""
