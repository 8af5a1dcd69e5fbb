"""Follow a live log record by record, over the files of all ranks, including those that appear later.

Starts near the end (the last 256 KiB of each file) after reading the METADATA at the beginning, so that a log of many
gigabytes opens immediately. A file that was truncated or replaced by a shorter one is read from its start again.
"""

import os
from pathlib import Path
from typing import Final

from sonde.log.backend import METADATA
from sonde.log.files import Source, find_log_files
from sonde.log.lines import LogFile, LogRecord, merge_by_time
from sonde.records.files import open_regular

_TAIL_BYTES: Final = 1 << 18
_HEAD_BYTES: Final = 1 << 16


class LogFollower:
    """Returns what has been written since the last call."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._files: dict[Path, LogFile] = {}

    def poll(self) -> list[LogRecord]:
        """Return the new records in time order. Raises RunNotFound while there is no log at all."""
        return merge_by_time([self._read(path) for path in find_log_files(self._source)])

    def _read(self, path: Path) -> list[LogRecord]:
        records = [] if path in self._files else self._begin(path)
        if path.stat().st_size < self._files[path].scanner.offset:
            self._files[path] = LogFile(path)
        file = self._files[path]
        return records + [record for block in file.blocks(tail=False) for record in file.records(block)]

    def _begin(self, path: Path) -> list[LogRecord]:
        """Start near the end of a file; return the METADATA from its beginning if that part is skipped."""
        with open_regular(path, follow=True) as file:
            start = max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0)
            file.seek(start)
            offset = start + len(file.readline(_TAIL_BYTES)) if start else 0
            file.seek(0)
            head = file.read(_HEAD_BYTES).rpartition(b"\n")[0] if start else b""
        self._files[path] = LogFile(path, offset=offset)
        return [record for record in LogFile(path).records(head) if record.type == METADATA]
