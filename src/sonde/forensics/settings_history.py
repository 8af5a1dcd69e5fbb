"""Which settings a step was made with, when a restart changed them: the run's events have the old ones. No torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sonde.records.layout import EVENTS, RunLayout
from sonde.records.manifest import Manifest
from sonde.records.reader import read_records

_PLACES: Final = ("data", "skip_list")
"""Settings that say where something lies."""


def settings_at(run: Path, manifest: Manifest, step: int | None) -> Any:
    """The settings that a step was made with; without one, those of the last start, as the manifest has them."""
    path = RunLayout(run).record_file(EVENTS, 0)
    changes: list[tuple[int, Mapping[str, Any]]] = []
    before: Mapping[str, Any] | None = None
    for record in read_records(path) if step is not None and path.exists() else ():
        if record.get("event") == "start":
            found = record.get("settings_before")
            before = found if isinstance(found, dict) else None
        elif record.get("event") == "resume" and isinstance(record.get("step"), int):
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
