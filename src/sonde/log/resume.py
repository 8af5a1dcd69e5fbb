"""The resume rule: a run that goes back to step k supersedes what it had logged from step k on.

The rule is applied to the records of each rank separately, in file order:

* A logger that started after another had written its last record is a new start of the run. Its
  first numeric step is k: everything at step k or later from earlier starts is superseded, whatever
  the metric.
* Within one start each metric is judged by its own steps (a validation may count its own
  iterations): when a metric is logged at an earlier step than before, its values from that step on
  are superseded.

Steps are compared number by number as far as both go; a number and a list do not compare. Names,
empty steps, METADATA and INFO are never superseded. Loggers that write at the same time are not
starts of one another. Pure functions, no I/O.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from sonde.log.backend import LOG
from sonde.log.lines import LogRecord
from sonde.records.values import step_numbers

StepKey: TypeAlias = tuple[bool, tuple[int, ...]]
"""Whether the step is a list, and its numbers."""


def drop_superseded(records: Sequence[LogRecord]) -> tuple[list[LogRecord], int]:
    """Return the records that still count, in order, and the number that were superseded, wholly or
    in part.
    """
    positions_of_rank: dict[int, list[int]] = {}
    for position, record in enumerate(records):
        if record.type == LOG:
            positions_of_rank.setdefault(record.rank, []).append(position)
    gone: set[int] = set()
    lost_names: dict[int, set[str]] = {}
    for positions in positions_of_rank.values():
        superseded = _superseded_in_rank([records[position] for position in positions])
        gone |= {positions[row] for row in superseded.rows}
        for row, names in superseded.names.items():
            lost_names[positions[row]] = names
    kept = []
    for position, record in enumerate(records):
        if position in gone:
            continue
        if position not in lost_names:
            kept.append(record)
            continue
        rest = _without(record.data, lost_names[position])
        if rest:
            kept.append(msgspec.structs.replace(record, data=rest))
    return kept, len(gone) + len(lost_names)


class _Superseded(NamedTuple):
    """What of the records of one rank no longer counts."""

    rows: set[int]
    """The records that a later start superseded, by their place."""
    names: dict[int, set[str]]
    """The metrics of other records that were logged again at an earlier step."""


def _superseded_in_rank(records: Sequence[LogRecord]) -> _Superseded:
    """Apply the resume rule to the LOG records of one rank, given in file order."""
    keys = [_step_key(record.step) for record in records]
    began = [start_of(record.timestamp, record.elapsedtime) for record in records]
    times = [record.timestamp or 0.0 for record in records]
    gone = of_earlier_starts(keys, began, times)
    rows_of_metric: dict[str, list[int]] = {}
    for row, record in enumerate(records):
        if row in gone or not isinstance(record.data, dict):
            continue
        for name in record.data:
            rows_of_metric.setdefault(name, []).append(row)
    names: dict[int, set[str]] = {}
    for name, rows in rows_of_metric.items():
        for place in logged_again([keys[row] for row in rows]):
            names.setdefault(rows[place], set()).add(name)
    return _Superseded(gone, names)


def _without(data: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}


def of_earlier_starts(
    keys: Sequence[StepKey | None], began: Sequence[int | None], times: Sequence[float]
) -> set[int]:
    """Return the rows that a later start of the run has superseded, given each row's step, start
    and timestamp.
    """
    rows_of_start = _rows_by_start(began)
    if len(rows_of_start) < 2:
        return set()
    first_keys: dict[int, StepKey] = {}
    for start, rows in rows_of_start.items():
        for row in rows:
            key = keys[row]
            if key is not None:
                first_keys[start] = key
                break
    gone: set[int] = set()
    for start, rows in rows_of_start.items():
        last_written = max(times[row] for row in rows) * 1000
        later_keys = [
            first_key
            for later, first_key in first_keys.items()
            if start < later and last_written <= later + 1
        ]
        for row in rows:
            key = keys[row]
            if key is not None and any(_is_at_or_after(key, later) for later in later_keys):
                gone.add(row)
    return gone


def _rows_by_start(began: Sequence[int | None]) -> dict[int, list[int]]:
    """Return the rows of each start of the run. Starts a millisecond apart are the same one:
    rounding may go either way.
    """
    rows_of_start: dict[int, list[int]] = {}
    for row, start in enumerate(began):
        if start is None:
            continue
        for known in (start, start + 1, start - 1):
            if known in rows_of_start:
                rows_of_start[known].append(row)
                break
        else:
            rows_of_start[start] = [row]
    return rows_of_start


def logged_again(keys: Sequence[StepKey | None]) -> set[int]:
    """Return the places in one metric's steps that were logged again at an earlier step."""
    standing: dict[bool, list[tuple[StepKey, int]]] = {False: [], True: []}
    again: set[int] = set()
    for place, key in enumerate(keys):
        if key is None:
            continue
        before = standing[key[0]]
        if before and not _is_at_or_after(key, before[-1][0]):
            while before and _is_at_or_after(before[-1][0], key):
                again.add(before.pop()[1])
        before.append((key, place))
    return again


def start_of(timestamp: float | None, elapsed: float | None) -> int | None:
    """Return when the logger of a record started, in milliseconds since the epoch; None if
    unknown.
    """
    try:
        return None if timestamp is None or elapsed is None else round((timestamp - elapsed) * 1000)
    except (ValueError, OverflowError):  # invalid times
        return None


def _step_key(step: object) -> StepKey | None:
    """Return a step in comparable form; None if it has no numbers."""
    numbers = step_numbers(step)
    return (isinstance(step, (list, tuple)), numbers) if numbers else None


def _is_at_or_after(step: StepKey, other: StepKey) -> bool:
    """Return whether `step` is at `other` or later, as far as both go; False if they do not
    compare.
    """
    num = min(len(step[1]), len(other[1]))
    return step[0] == other[0] and step[1][:num] >= other[1][:num]
