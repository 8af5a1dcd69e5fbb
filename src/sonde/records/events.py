"""What happened to a run itself (a start, a checkpoint, a skip, a rollback): one record each, in the events of its ranks.

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
    """An event of now, as it is written; `details` may give another time."""
    return {"type": "EVENT", "time": time.time(), "rank": rank, "event": event, **details}


def read_events(run: Path, *names: str, rank: int = 0) -> Iterator[Record]:
    """The events of these names that a rank recorded, oldest first; none when the file is not there."""
    path = RunLayout(run).record_file(EVENTS, rank)
    for record in read_records(path) if path.exists() else ():
        if record.get("event") in names:
            yield record


def append_event(run: Path, event: str, **details: object) -> bool:
    """Add an event to a run, on the disk itself when this returns; False when it could not be written."""
    with RecordFile(RunLayout(run).record_file(EVENTS, 0)) as file:
        return file.append(event_record(event, 0, details)) and file.sync()
