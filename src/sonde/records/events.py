"""Events in the life of a run (a start, a checkpoint, a skip, a rollback): one record each, in its ranks' event files.

for event in read_events(run, "start", "resume"): …
append_event(run, "rollback", step=1734)          # from outside; a process that has the run open calls `Run.event`
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sonde.records.append import RecordFile
from sonde.records.layout import EVENTS, RunLayout
from sonde.records.reader import Record, read_records


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
    """Append an event to a run, synced to disk on return; return False if it could not be written."""
    with RecordFile(RunLayout(run).record_file(EVENTS, 0)) as file:
        return file.append(event_record(event, 0, details)) and file.sync()
