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
from dataclasses import dataclass
from typing import TypeAlias, final

import msgspec

from sonde.log.backend import LOG
from sonde.log.lines import LogRecord
from sonde.log.steps import step_numbers

StepKey: TypeAlias = tuple[bool, tuple[int, ...]]
"""Whether the step is a list, and its numbers."""
StartKey: TypeAlias = tuple[int, int]
"""A rank, and the start time of its logger in milliseconds since the epoch."""


@final
@dataclass(slots=True)
class Start:
    """One start of a run: the records of one logger."""

    rank: int
    began: int
    """Start time in milliseconds since the epoch, like `last`."""
    last: float
    first_step: StepKey | None
    limits: list[StepKey]
    """Records of this start at one of these steps or later are superseded."""


def step_key(step: object) -> StepKey | None:
    """Return a step in comparable form; None if it has no numbers."""
    numbers = step_numbers(step)
    return (isinstance(step, (list, tuple)), numbers) if numbers else None


def is_before(step: StepKey, other: StepKey) -> bool:
    """Return whether `step` comes before `other`, as far as both go; False if they do not compare."""
    num = min(len(step[1]), len(other[1]))
    return step[0] == other[0] and step[1][:num] < other[1][:num]


def is_at_or_after(step: StepKey, other: StepKey) -> bool:
    """Return whether `step` is at `other` or later, as far as both go; False if they do not compare."""
    num = min(len(step[1]), len(other[1]))
    return step[0] == other[0] and step[1][:num] >= other[1][:num]


def start_of(record: LogRecord) -> int | None:
    """Return when the logger of a record started, in milliseconds since the epoch; None if unknown."""
    if record.timestamp is None or record.elapsedtime is None:
        return None
    try:
        return round((record.timestamp - record.elapsedtime) * 1000)
    except (ValueError, OverflowError):  # invalid times
        return None


def find_starts(records: Iterable[LogRecord]) -> dict[StartKey, Start]:
    """Return the starts of a run by rank and time, from its LOG records, each with its limits."""
    starts: dict[StartKey, Start] = {}
    for record in records:
        rank, began = record.rank, start_of(record)
        if began is None:
            continue
        start = starts.get((rank, began))
        if start is None:
            # Rounding may go either way: one millisecond more or less is the same start.
            start = starts.get((rank, began + 1)) or starts.get((rank, began - 1))
            start = starts[rank, began] = start or Start(rank=rank, began=began, last=0.0, first_step=None, limits=[])
        start.last = max(start.last, (record.timestamp or 0.0) * 1000)
        if start.first_step is None:
            start.first_step = step_key(record.step)
    in_order = sorted({id(start): start for start in starts.values()}.values(), key=lambda start: start.began)
    for position, start in enumerate(in_order):
        for earlier in in_order[:position]:
            if start.first_step is not None and earlier.rank == start.rank and earlier.last <= start.began + 1:
                earlier.limits.append(start.first_step)
    return starts


def drop_superseded(records: Sequence[LogRecord]) -> tuple[list[LogRecord], int]:
    """Return the records that still count, in order, and the number that were superseded, wholly or in part."""
    if _never_goes_back(records):
        return list(records), 0
    starts = find_starts(record for record in records if record.type == LOG)
    gone = [_is_of_earlier_start(record, starts) for record in records]
    lost = _lost_values(records, gone)
    kept = []
    num_superseded = 0
    for position, record in enumerate(records):
        names = lost.get(position, ())
        if gone[position] or names:
            num_superseded += 1
        if gone[position]:
            continue
        if names:
            rest = {name: value for name, value in record.data.items() if name not in names}
            if not rest:
                continue
            record = msgspec.structs.replace(record, data=rest)
        kept.append(record)
    return kept, num_superseded


def _never_goes_back(records: Sequence[LogRecord]) -> bool:
    """Return whether each rank has one start and its numeric steps never go back, so that nothing is superseded."""
    last: dict[int, StepKey] = {}
    first_start: dict[int, int] = {}
    for record in records:
        if record.type != LOG:
            continue
        began = start_of(record)
        if began is not None and abs(began - first_start.setdefault(record.rank, began)) > 1:
            return False
        key = step_key(record.step)
        if key is None:
            continue
        before = last.get(record.rank, key)
        if key[0] != before[0] or is_before(key, before):
            return False
        last[record.rank] = key
    return True


def _is_of_earlier_start(record: LogRecord, starts: dict[StartKey, Start]) -> bool:
    began = start_of(record)
    if record.type != LOG or began is None:
        return False
    start = starts.get((record.rank, began))
    key = step_key(record.step)
    return start is not None and key is not None and any(is_at_or_after(key, limit) for limit in start.limits)


def _lost_values(records: Sequence[LogRecord], gone: Sequence[bool]) -> dict[int, set[str]]:
    """Return, for each record, its metrics that were logged again at an earlier step."""
    standing: dict[tuple[int, str, bool], list[tuple[StepKey, int]]] = {}
    lost: dict[int, set[str]] = {}
    for position, record in enumerate(records):
        key = step_key(record.step) if record.type == LOG and not gone[position] else None
        if key is None or not isinstance(record.data, dict):
            continue
        for name in record.data:
            series = standing.setdefault((record.rank, name, key[0]), [])
            if series and is_before(key, series[-1][0]):
                while series and is_at_or_after(series[-1][0], key):
                    lost.setdefault(series.pop()[1], set()).add(name)
            series.append((key, position))
    return lost
