"""Follow a live log record by record, over the files of all ranks, including those that appear later.

Starts near the end (the last 256 KiB of each file) after reading the METADATA at the beginning, so that a log of many
gigabytes opens immediately. A file that was truncated or replaced by a shorter one is read from its start again.
"""

import os
from pathlib import Path
from typing import Final, final

from sonde.log.backend import METADATA
from sonde.log.files import Source, find_log_files, rank_in_name
from sonde.log.lines import LogRecord, merge_by_time, parse_log_line
from sonde.records.files import open_regular
from sonde.records.reader import LineScanner

_TAIL_BYTES: Final = 1 << 18
_HEAD_BYTES: Final = 1 << 16


@final
class LogFollower:
    """Returns what has been written since the last call."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._scanners: dict[Path, LineScanner] = {}

    def poll(self) -> list[LogRecord]:
        """Return the new records in time order. Raises RunNotFound while there is no log at all."""
        files = []
        for path in find_log_files(self._source):
            found = [] if path in self._scanners else self._begin(path)
            files.append(found + self._read(path))
        return merge_by_time(files)

    def _begin(self, path: Path) -> list[LogRecord]:
        """Start near the end of a file; return the METADATA from its beginning if that part is skipped."""
        with open_regular(path, follow=True) as file:
            start = max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0)
            file.seek(start)
            offset = start + len(file.readline(_TAIL_BYTES)) if start else 0
            file.seek(0)
            lines = file.read(_HEAD_BYTES).splitlines()[:-1] if start else []
        self._scanners[path] = LineScanner(path, offset=offset)
        records = [_parsed(line, path) for line in lines]
        return [record for record in records if record is not None and record.type == METADATA]

    def _read(self, path: Path) -> list[LogRecord]:
        scanner = self._scanners[path]
        records = []
        with open_regular(path, follow=True) as file:
            if os.fstat(file.fileno()).st_size < scanner.offset:
                scanner = self._scanners[path] = LineScanner(path)
            for _, line in scanner.lines(file):
                record = _parsed(line, path)
                if record is not None:
                    records.append(record)
        return records


def _parsed(line: bytes, path: Path) -> LogRecord | None:
    try:
        record = parse_log_line(line, rank=rank_in_name(path))
    except ValueError:
        return None
    return record if isinstance(record, LogRecord) else None
