"""The order of time among records of several files, also where a writer gave no timestamp.

TCAP's INFO has only a local time without a zone. The zone is that of the machine that wrote it: it is taken from the records
of the same file that have both; where there is none, it is taken to be this machine's.
"""

import datetime
import heapq
from collections.abc import Iterator, Sequence

import msgspec

from sonde.log.record import LogRecord


def with_timestamps(records: Sequence[LogRecord]) -> list[LogRecord]:
    """The records of one file, each with a timestamp where its `datetime` allows one."""
    if all(record.timestamp is not None for record in records):
        return list(records)
    known = next((one for one in records if one.timestamp is not None and _as_utc(one.datetime) is not None), None)
    shift = None if known is None else known.timestamp - _as_utc(known.datetime)  # type: ignore[operator]  # chosen for having both
    return [
        record
        if record.timestamp is not None
        else msgspec.structs.replace(record, timestamp=_timestamp(record.datetime, shift))
        for record in records
    ]


def merge_by_time(files: Sequence[Sequence[LogRecord]]) -> list[LogRecord]:
    """The records of several files in the order of time; those of one file stay in its order."""
    merged = heapq.merge(*[_timed(records) for records in files], key=lambda pair: pair[0])
    return [record for _, record in merged]


def _timed(records: Sequence[LogRecord]) -> Iterator[tuple[float, LogRecord]]:
    """Each record with a time that never runs backwards."""
    latest = 0.0
    for record in records:
        latest = max(latest, record.timestamp or 0.0)
        yield latest, record


def _timestamp(local_time: str | None, shift: float | None) -> float | None:
    utc = _as_utc(local_time)
    if utc is None or local_time is None:
        return None
    moment = datetime.datetime.fromisoformat(local_time)
    if moment.tzinfo is not None or shift is None:
        return moment.timestamp()
    return utc + shift


def _as_utc(local_time: str | None) -> float | None:
    """The seconds that a local time without a zone would be, were it UTC; None for what is no local time."""
    try:
        moment = datetime.datetime.fromisoformat(local_time or "")
        return moment.replace(tzinfo=datetime.timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None
