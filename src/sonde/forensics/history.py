"""Which settings a step used, what changed about them, and which samples it skipped, from the run's
events. Needs no torch.

Samples added to the skip list (`skip` events) are skipped from the first start after that on, which
is the one after the step of its `resume` event. Samples that were on the list before the run began
are in no event and always skipped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from sonde.data.skip_list import SkipList
from sonde.records.journal import read_events
from sonde.records.manifest import Manifest
from sonde.records.reader import Record
from sonde.spikes.spike_log import SKIP
from sonde.train.stopping import StopWhen

_PLACES: Final = ("data", "skip_list")
"""Settings that are paths."""
HARMLESS: Final = frozenset(
    {
        *(
            "recipe",
            "data",
            "skip_list",
            "num_workers",
            "log_interval",
            "keep_checkpoints",
            "watch_spikes",
        ),
        *("on_save_error", "timeout_seconds", *(field.name for field in fields(StopWhen))),
        *(
            f"{what}_every_{unit}"
            for what in ("validate", "save")
            for unit in ("updates", "epochs")
        ),
    }
)
"""Settings of sonde's recipe that affect how long training runs and how it is monitored, but not
the training itself.
"""


def read_starts(run: Path) -> Iterator[tuple[int, Record, Record | None]]:
    """Yield each start that went on from a state: the updates completed then, its record, and that
    of the start before it.
    """
    earlier: Record | None = None
    now: Record | None = None
    for record in read_events(run, "start", "resume"):
        if record["event"] == "start":
            earlier = now
            now = record
        elif now is not None and isinstance(record.get("step"), int):
            yield record["step"], now, earlier
            earlier = None


def settings_at(run: Path, manifest: Manifest, step: int | None) -> Any:
    """Return the settings that `step` used; without a step, those of the last start, as in the
    manifest.
    """
    changes: list[tuple[int, Mapping[str, Any]]] = []
    for last, start, _ in read_starts(run) if step is not None else ():
        # A start that went back further than an earlier change repeated those steps.
        changes = [(min(earlier, last), settings) for earlier, settings in changes]
        before = start.get("settings_before")
        changes += [(last, before)] if isinstance(before, dict) else []
    then = next((settings for last, settings in changes if last >= (step or 0)), None)
    now = manifest.settings
    if then is None or not isinstance(now, dict):
        return now
    # Paths are current; a setting that an older version did not have yet keeps the value of that
    # time, its default.
    return {**now, **then, **{name: now[name] for name in _PLACES if name in now}}


def changed_settings(before: object, after: object) -> dict[str, tuple[Any, Any]]:
    """Return the settings that changed and can affect the training, each with its two values."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return {}
    # A setting that only one of them has came with another version of sonde, at its default.
    names = [
        name
        for name in before
        if name in after and name not in HARMLESS and before[name] != after[name]
    ]
    return {name: (before[name], after[name]) for name in names}


class LaterSkip(NamedTuple):
    """Samples that were added to the skip list during the run."""

    samples: SkipList
    """The samples."""
    first_step: int | None = None
    """The first step made without them; None if the run has not been restarted since."""

    def is_in_force(self, step: int) -> bool:
        """Return whether this step skipped the samples."""
        return self.first_step is not None and step >= self.first_step


def read_skip_history(run: Path) -> list[LaterSkip]:
    """Return what was added to the run's skip list, and from which step on it applied."""
    skips = list[LaterSkip]()
    listed = list[LaterSkip]()
    first = 1
    for record in read_events(run, "start", "resume", SKIP):
        if record["event"] == SKIP:
            samples = record.get("samples")
            if isinstance(samples, dict):
                numbers = {
                    str(name): [int(number) for number in numbers]
                    for name, numbers in samples.items()
                }
                skips.append(LaterSkip(SkipList(numbers)))
            continue
        if record["event"] == "start":
            # what is on the list is skipped from the first step of this start on
            listed = skips
            first = 1
        elif isinstance(record.get("step"), int):
            first = record["step"] + 1
        # A start may have gone back further than an earlier one.
        begun = [skip._replace(first_step=min(first, skip.first_step or first)) for skip in listed]
        skips = [*begun, *skips[len(listed) :]]
    return skips
