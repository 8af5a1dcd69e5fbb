"""The resume rule: a run that goes back to step k supersedes what it had logged from step k on.

The rule is applied to the records of each rank separately, in file order:

* A logger that started after another had written its last record is a new start of the run. Its first numeric step is
  k: everything at step k or later from earlier starts is superseded, whatever the metric.
* Within one start each metric is judged by its own steps (a validation may count its own iterations): when a metric is
  logged at an earlier step than before, its values from that step on are superseded.

Steps are compared number by number as far as both go; a number and a list do not compare. Names, empty steps, METADATA
and INFO are never superseded. Loggers that write at the same time are not starts of one another. Pure functions, no
I/O.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from sonde.log.backend import LOG
from sonde.log.lines import LogRecord
from sonde.log.steps import step_numbers

StepKey: TypeAlias = tuple[bool, tuple[int, ...]]
"""Whether the step is a list, and its numbers."""


class _Row(NamedTuple):
    """A LOG record of one rank."""

    position: int
    record: LogRecord
    key: StepKey | None
    """Its step; None if it has no numbers."""


def drop_superseded(records: Sequence[LogRecord]) -> tuple[list[LogRecord], int]:
    """Return the records that still count, in order, and the number that were superseded, wholly or in part."""
    by_rank: dict[int, list[_Row]] = {}
    for position, record in enumerate(records):
        if record.type == LOG:
            by_rank.setdefault(record.rank, []).append(_Row(position, record, _step_key(record.step)))
    gone: set[int] = set()
    lost: dict[int, set[str]] = {}
    for rows in by_rank.values():
        gone |= _of_earlier_starts(rows)
        lost |= _lost_values(row for row in rows if row.position not in gone)
    kept = []
    for position, record in enumerate(records):
        if position in lost:
            rest = {name: value for name, value in record.data.items() if name not in lost[position]}
            if rest:
                kept.append(msgspec.structs.replace(record, data=rest))
        elif position not in gone:
            kept.append(record)
    return kept, len(gone) + len(lost)


def _of_earlier_starts(rows: Iterable[_Row]) -> set[int]:
    """Return the positions of records that a later start of the run has superseded."""
    starts: dict[int, list[_Row]] = {}
    for row in rows:
        began = _start_of(row.record)
        if began is not None:
            # Rounding may go either way: one millisecond more or less is the same start.
            same = next((one for one in (began, began + 1, began - 1) if one in starts), began)
            starts.setdefault(same, []).append(row)
    first_steps = {began: next((row.key for row in found if row.key), None) for began, found in starts.items()}
    gone: set[int] = set()
    for began, found in starts.items() if len(starts) > 1 else ():
        last = max(row.record.timestamp or 0.0 for row in found) * 1000
        limits = [key for other, key in first_steps.items() if key and began < other and last <= other + 1]
        gone |= {row.position for row in found if row.key and any(_is_at_or_after(row.key, one) for one in limits)}
    return gone


def _lost_values(rows: Iterable[_Row]) -> dict[int, set[str]]:
    """Return, by position, the metrics that were logged again at an earlier step."""
    standing: dict[tuple[str, bool], list[tuple[StepKey, int]]] = {}
    lost: dict[int, set[str]] = {}
    for position, record, key in rows:
        for name in record.data if key is not None and isinstance(record.data, dict) else ():
            assert key is not None
            series = standing.setdefault((name, key[0]), [])
            if series and not _is_at_or_after(key, series[-1][0]):
                while series and _is_at_or_after(series[-1][0], key):
                    lost.setdefault(series.pop()[1], set()).add(name)
            series.append((key, position))
    return lost


def _step_key(step: object) -> StepKey | None:
    """Return a step in comparable form; None if it has no numbers."""
    numbers = step_numbers(step)
    return (isinstance(step, (list, tuple)), numbers) if numbers else None


def _is_at_or_after(step: StepKey, other: StepKey) -> bool:
    """Return whether `step` is at `other` or later, as far as both go; False if they do not compare."""
    num = min(len(step[1]), len(other[1]))
    return step[0] == other[0] and step[1][:num] >= other[1][:num]


def _start_of(record: LogRecord) -> int | None:
    """Return when the logger of a record started, in milliseconds since the epoch; None if unknown."""
    if record.timestamp is None or record.elapsedtime is None:
        return None
    try:
        return round((record.timestamp - record.elapsedtime) * 1000)
    except (ValueError, OverflowError):  # invalid times
        return None
