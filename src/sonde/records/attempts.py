"""What an earlier attempt recorded, moved to where it does not mix with a training that begins anew in the same run directory.

    RUN/attempts/1/records/steps.rank0.jsonl        the first attempt's; RUN/records holds those of the newest

The events of the run, its manifest and its checkpoints stay. Every rank moves its own record files; rank 0 moves the folders too.
"""

from pathlib import Path

from sonde.records import disk
from sonde.records.layout import EVENTS, RunLayout


def move_attempt(layout: RunLayout, rank: int, number: int) -> tuple[Path, list[str]] | None:
    """Move what one rank recorded to `attempts/{number}`: where that is, and the kinds of records moved; None when there was nothing."""
    files = [file for file in layout.record_files() if file.rank == rank and file.kind != EVENTS]
    if not any(file.path.stat().st_size for file in files):
        return None
    aside = RunLayout(layout.attempts / str(number))
    disk.make_directories(aside.records)
    for file in files:
        disk.replace(file.path, aside.record_file(file.kind, file.rank))
    for folder in (layout.flight, layout.forensics) if rank == 0 else ():
        if folder.is_dir():
            disk.replace(folder, aside.root / folder.name)
    return aside.root, [file.kind for file in files]
