"""Find the files of a log, and read their lines as records.

A line is a plain JSON object, as sonde writes it, or a line of another logger (foreign_lines.py).

Other loggers do not write their rank, but their users put it into the name: `dllogger_rank3.log`,
`log.rank3.jsonl`.

TCAP's INFO has no timestamp, only a local time without a zone: it is taken as that of the machine
that reads it.
"""

import datetime
import glob
import heapq
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from sonde.errors import RunError, RunNotFound
from sonde.log.backend import INFO, LOG, METADATA
from sonde.log.foreign_lines import read_foreign_line
from sonde.records import layout
from sonde.records.files import open_regular
from sonde.records.layout import RunLayout
from sonde.records.reader import LineScanner
from sonde.records.seal import unseal
from sonde.records.values import decode

GAP: Final = "GAP"
"""The record that says how many records were lost (records/append.py)."""

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a glob or a run directory, or a list of them."""

_RANK: Final = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d.\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:?\d\d)?", re.IGNORECASE
)
"""A date and a time: up to the seconds, their fraction, the zone."""


def find_log_files(source: Source) -> list[Path]:
    """Return the log files that `source` refers to, without duplicates. Raises RunNotFound if there
    are none.
    """
    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    found: dict[Path, None] = {}
    for path in sources:
        found |= dict.fromkeys(_find_one(os.fspath(path)))
    return list(found)


def run_directory(source: Source) -> Path | None:
    """Return `source` if it is a run directory, otherwise None."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if RunLayout(path).manifest.is_file():
            return path
    return None


def _not_a_link(path: Path) -> Path:
    """Return `path`; raise if it is a link, as links inside a run could lead anywhere. User-named
    links are fine.
    """
    if path.is_symlink():
        raise RunError(
            f"{path} is a link, not a regular file", hint="name the log itself to read it"
        )
    return path


def _find_one(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        files = [_not_a_link(file.path) for file in RunLayout(path).record_files(layout.LOG)]
        if not files:
            named = [*path.glob("*.jsonl"), *path.glob("*.json")]
            files = sorted(file for file in named if file.is_file())
    elif path.exists():
        files = [path]
    else:
        files = [
            file for match in sorted(glob.glob(name, recursive=True)) for file in _find_one(match)
        ]
    if not files:
        raise RunNotFound(
            f"there is no log at {name}",
            hint="give a log file, a glob in quotes, or the directory of a run",
        )
    return files


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record: what was logged, at which step, when and by which rank."""

    type: str
    """`LOG`, `METADATA` or `INFO`."""
    step: Any = None
    """The step as given: a number, a list of numbers or a name; None for METADATA and INFO."""
    data: Any = None
    """LOG: the values by name. INFO: the given object. METADATA: the metadata of the metric."""
    metric: str | None = None
    """The metric that a METADATA record is about."""
    rank: int = 0
    timestamp: float | None = None
    """Seconds since the epoch; derived from `datetime` if the writer gave no timestamp (TCAP's
    INFO).
    """
    elapsedtime: float | None = None
    """Seconds since the logger started; None if the writer does not say."""
    datetime: str | None = None
    """Local time as the writer formatted it."""


class LogFile:
    """A log file: its blocks of lines, and the records in them. Lines that are not records are
    counted.
    """

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.scanner = LineScanner(path, offset=offset)
        """Where reading stopped, and the number of lines that are not records."""
        named = _RANK.search(path.name)
        self.rank = int(named[1]) if named else 0
        """The rank of records that do not have their own."""
        self.num_lost = 0
        """Number of records that could not be written, according to GAP records."""

    def blocks(self, *, tail: bool = True) -> Iterator[bytes]:
        """Yield blocks of whole lines. `tail` adds a last line without a newline, which may be
        complete.
        """
        scanner = self.scanner
        with open_regular(scanner.path, follow=True) as file:
            yield from scanner.blocks(file)
            if tail and scanner.torn_bytes:
                file.seek(scanner.offset)
                yield file.read(scanner.torn_bytes)

    def records(self, block: bytes) -> list[LogRecord]:
        """Return the records of a block."""
        found = []
        for offset, line in self.scanner.lines_of(block):
            try:
                record = parse_log_line(line, rank=self.rank)
            except ValueError as error:
                self.scanner.note_bad(offset, len(line), str(error))
                continue
            if isinstance(record, LogRecord):
                found.append(record)
            else:
                self.num_lost += record
        return found


def parse_log_line(line: bytes, *, rank: int = 0) -> LogRecord | int:
    """Return the record on `line`, or the number of lost records if it is a GAP.

    `rank` is used for writers that do not record their own. Raises ValueError if this is not a line
    of a log.
    """
    value = decode(unseal(line)) if line.startswith(b"{") else read_foreign_line(line)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    kind = value.get("type")
    if kind == GAP:
        num_lost = value.get("num_lost")
        return num_lost if isinstance(num_lost, int) else 0
    if kind not in (LOG, METADATA, INFO):
        raise ValueError(f"a record of type {kind!r}, which no logger writes")
    written_rank = value.get("rank", value.get("local_rank"))
    local_time = value.get("datetime")
    metric = value.get("metric")
    return LogRecord(
        type=kind,
        step=value.get("step"),
        data=value.get("metadata" if kind == METADATA else "data"),
        metric=metric if isinstance(metric, str) else None,
        rank=written_rank if isinstance(written_rank, int) else rank,
        timestamp=_timestamp(value),
        elapsedtime=_seconds(value.get("elapsedtime")),
        datetime=local_time if isinstance(local_time, str) else None,
    )


def _timestamp(value: Mapping[str, Any]) -> float | None:
    """Return when a record was written; foreign lines have the local time alone."""
    if "timestamp" in value:
        return _seconds(value["timestamp"])
    return seconds_of_time(str(value.get("datetime")))


def _seconds(value: object) -> float | None:
    try:
        # a line may contain anything: non-numbers raise
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def seconds_of_time(written: str) -> float | None:
    """Return a written time in seconds since the epoch; None if it is not a valid time. A time
    without a zone is taken as that of the machine that reads it.
    """
    try:
        return datetime.datetime.fromisoformat(normalised_time(written)).timestamp()
    except (ValueError, OverflowError):
        return None


def normalised_time(written: str) -> str:
    """Return a time as `fromisoformat` of Python 3.10 can read it: a point and six digits for a
    fraction, `+00:00` for `Z`. What is no time is returned as it is.
    """
    match = _TIME.fullmatch(written)
    if match is None:
        return written
    seconds, fraction, zone = match.groups()
    if fraction:
        seconds += f".{fraction[:6]:0<6}"
    if not zone:
        return seconds
    digits = "+0000" if zone in "Zz" else zone.replace(":", "")
    return f"{seconds}{digits[:3]}:{digits[3:]}"


def merge_by_time(files: Sequence[Sequence[LogRecord]]) -> list[LogRecord]:
    """Return the records of several files in time order; records of one file keep their order."""
    merged = heapq.merge(*[_timed(records) for records in files], key=lambda pair: pair[0])
    return [record for _, record in merged]


def _timed(records: Sequence[LogRecord]) -> Iterator[tuple[float, LogRecord]]:
    """Yield each record with a time that never runs backwards."""
    latest = 0.0
    for record in records:
        latest = max(latest, record.timestamp or 0.0)
        yield latest, record
