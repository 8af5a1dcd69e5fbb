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
from typing import TypeAlias

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
    by_rank: dict[int, list[int]] = {}
    for position, record in enumerate(records):
        if record.type == LOG:
            by_rank.setdefault(record.rank, []).append(position)
    gone: set[int] = set()
    lost: dict[int, set[str]] = {}
    for positions in by_rank.values():
        found = [records[position] for position in positions]
        keys = [_step_key(record.step) for record in found]
        began = [start_of(record.timestamp, record.elapsedtime) for record in found]
        earlier = of_earlier_starts(keys, began, [record.timestamp or 0.0 for record in found])
        gone |= {positions[row] for row in earlier}
        by_name: dict[str, list[int]] = {}
        for row, record in enumerate(found):
            for name in record.data if row not in earlier and isinstance(record.data, dict) else ():
                by_name.setdefault(name, []).append(row)
        for name, rows in by_name.items():
            for place in logged_again([keys[row] for row in rows]):
                lost.setdefault(positions[rows[place]], set()).add(name)
    kept = []
    for position, record in enumerate(records):
        if position in lost:
            rest = {
                name: value for name, value in record.data.items() if name not in lost[position]
            }
            if rest:
                kept.append(msgspec.structs.replace(record, data=rest))
        elif position not in gone:
            kept.append(record)
    return kept, len(gone) + len(lost)


def of_earlier_starts(
    keys: Sequence[StepKey | None], began: Sequence[int | None], times: Sequence[float]
) -> set[int]:
    """Return the rows that a later start of the run has superseded, given each row's step, start
    and timestamp.
    """
    starts: dict[int, list[int]] = {}
    for row, start in enumerate(began):
        if start is not None:
            # Rounding may go either way: one millisecond more or less is the same start.
            same = next((one for one in (start, start + 1, start - 1) if one in starts), start)
            starts.setdefault(same, []).append(row)
    first_steps = {
        start: next((key for row in rows if (key := keys[row])), None)
        for start, rows in starts.items()
    }
    gone: set[int] = set()
    for start, rows in starts.items() if len(starts) > 1 else ():
        last = max(times[row] for row in rows) * 1000
        limits = [
            key for other, key in first_steps.items() if key and start < other and last <= other + 1
        ]
        for row in rows:
            key = keys[row]
            if key and any(_is_at_or_after(key, limit) for limit in limits):
                gone.add(row)
    return gone


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
