"""Which settings a step was made with, and which samples were skipped at it: the run's events tell what its restarts changed. No torch.

Samples that were added to the skip list (`skip`) are left out from the first start after that on, which began after the step of its `resume`. What
stood on the list before the run began is not in any event, and always in force.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from sonde.data.skip_list import SkipList
from sonde.records.events import read_events
from sonde.records.manifest import Manifest
from sonde.records.reader import Record
from sonde.spikes.skipping import SKIP

_PLACES: Final = ("data", "skip_list")
"""Settings that say where something lies."""


def settings_at(run: Path, manifest: Manifest, step: int | None) -> Any:
    """The settings that a step was made with; without one, those of the last start, as the manifest has them."""
    changes: list[tuple[int, Mapping[str, Any]]] = []
    before: Mapping[str, Any] | None = None
    for record in read_events(run, "start", "resume") if step is not None else ():
        if record["event"] == "start":
            found = record.get("settings_before")
            before = found if isinstance(found, dict) else None
        elif isinstance(record.get("step"), int):
            last = record["step"]
            # A start that went back further than an earlier change made those steps again.
            changes = [(min(one, last), settings) for one, settings in changes]
            changes += [(last, before)] if before is not None else []
    then = next((settings for last, settings in changes if last >= (step or 0)), None)
    now = manifest.settings
    if then is None or not isinstance(now, dict):
        return now
    # Where things lie is as it is now, and what an older version did not have yet is as it was then: the default.
    return {**now, **then, **{name: now[name] for name in _PLACES if name in now}}


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
    skips: list[LaterSkip] = []
    num_told = 0
    """So many of them were on the list when the current start began."""
    first_step = 1
    for record in read_events(run, "start", "resume", SKIP):
        if record["event"] == "start":
            skips = _in_force(skips, num_told, first_step)
            num_told, first_step = len(skips), 1
        elif record["event"] == SKIP:
            skips += _added(record)
        elif isinstance(record.get("step"), int):
            first_step = record["step"] + 1
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
