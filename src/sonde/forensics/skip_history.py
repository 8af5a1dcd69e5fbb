"""Since which step samples were skipped: a list that grew in the middle of a run was not in force before.

The run's events tell: samples that were added (`skip`) are left out from the first start after that on, which began after the step of its
`resume`. What stood on the list before the run began is not in any event, and always in force. No torch.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from sonde.data.skip_list import SkipList
from sonde.records.layout import EVENTS, RunLayout
from sonde.records.reader import Record, read_records
from sonde.spikes.skipping import SKIP


@final
@dataclass(frozen=True, slots=True)
class LaterSkip:
    """Samples that were added to a skip list while the run existed."""

    samples: SkipList
    """Which."""
    first_step: int | None = None
    """The first step that was made without them; None when the run was not started since."""

    def is_in_force(self, step: int) -> bool:
        """Was this step made without them?"""
        return self.first_step is not None and step >= self.first_step


def read_skip_history(run: Path) -> list[LaterSkip]:
    """What was added to the run's skip list, with the step since when it counts."""
    path = RunLayout(run).record_file(EVENTS, 0)
    skips: list[LaterSkip] = []
    num_told = 0
    """So many of them were on the list when the current start began."""
    first_step = 1
    for record in read_records(path) if path.exists() else ():
        event = record.get("event")
        if event == "start":
            skips = _in_force(skips, num_told, first_step)
            num_told, first_step = len(skips), 1
        elif event == "resume" and isinstance(record.get("step"), int):
            first_step = record["step"] + 1
        elif event == SKIP:
            skips += _added(record)
    return _in_force(skips, num_told, first_step)


def _in_force(skips: list[LaterSkip], num_told: int, first_step: int) -> list[LaterSkip]:
    """A start that began with `first_step` was told of the first few; it may have gone back further than an earlier one."""
    told = [replace(one, first_step=min(first_step, one.first_step or first_step)) for one in skips[:num_told]]
    return [*told, *skips[num_told:]]


def _added(record: Record) -> list[LaterSkip]:
    samples = record.get("samples")
    if not isinstance(samples, dict):
        return []
    return [LaterSkip(SkipList({str(name): [int(one) for one in numbers] for name, numbers in samples.items()}))]
