"""What every reader of a foreign log returns: its numbers, step by step.

    Point       the values of one step
    Source      one run of another tool: where it is, what wrote it, its points, what was unreadable
    points_of   rows of named numbers, in which the step is one of the numbers, as points

Readers of tables, JSON lines and printed lines return rows. Which of the columns is the step is
decided here, once for all of them. Pure.
"""

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from sonde.curves.names import loss_names

MAX_STEP: Final = 1 << 53
"""Above this, a float cannot tell two steps apart."""
_MAX_NAME: Final = 300
_LAST_TIME: Final = 253_402_300_799
"""The end of the year 9999, the latest date that can be formatted."""
_FIRST_TIME: Final = 631_152_000
"""The year 1990: a smaller number in a column called `time` is a duration."""
_TIME_NAMES: Final = frozenset({"timestamp", "_timestamp", "wall time", "wall_time", "time", "ts"})
_STEP_NAMES: Final = (
    "trainer.global_step",
    "train.global_step",
    "global_step",
    "global step",
    "num_updates",
    "step",
    "train.step",
    "train_step",
    "training_step",
    "steps",
    "_step",
    "iteration",
    "iterations",
    "iter",
    "iters",
    "update",
    "updates",
    "num_steps",
    "current_steps",
    "current_step",
    "global_step.max_steps",
    "point",
    "batch",
    "training_iteration",
    "it",
    "#",
    "s",
    "samples_count",
    "consumed_samples",
    "consumed samples",
    "epoch_num",
    "epoch",
)
"""Names of the column that counts steps, the best first."""
_EPOCH: Final = "epoch"
VALUE: Final = "value"
"""What a series is called that has no name."""
VALUE_COLUMNS: Final = (VALUE, "metricvalue", "metric_value", "metric.value")
KEY_COLUMNS: Final = ("key", "metric", "tag", "metric_name", "metricname", "metric.name", "name")
"""What the name of a metric is called, where one is logged at a time."""
_MAX_LISTED: Final = 1000

Row: TypeAlias = dict[str, float]
"""The numbers of one line, by name."""


class Point(NamedTuple):
    """The values logged at one step."""

    step: int
    time: float | None
    """Seconds since the epoch."""
    values: dict[str, float]


@dataclass(kw_only=True, slots=True)
class Source:
    """One run of another tool. All fields except `path` and `points` are filled while the points
    are read.
    """

    path: Path
    name: str = ""
    """Its name, where one file holds several runs."""
    format: str = ""
    """What wrote it, in words: "Lightning's metrics.csv"."""
    points: Iterable[Point] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    """Descriptions of what could not be read."""
    failed: bool = False
    """Whether the tool recorded that the training failed."""

    def note(self, damage: str) -> None:
        """Note something that could not be read. Only the first 20 are kept."""
        if len(self.damage) < 20:
            self.damage.append(damage)
        elif len(self.damage) == 20:
            self.damage.append("and more")


def usual_time(seconds: float | None) -> float | None:
    """Return the time if a calendar can represent it, otherwise None (damaged files contain such
    values).
    """
    return seconds if seconds is not None and 0 < seconds < _LAST_TIME else None


def usual_name(name: str) -> str:
    """Convert a metric's name to sonde's convention: parts joined with dots."""
    return name.strip("/ \t")[:_MAX_NAME].replace("/", ".")


def is_number(value: object) -> bool:
    """Return whether it is a number that fits a float, including NaN and infinity."""
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 1023)


_NUMBER: Final = re.compile(
    r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf|infinity)", re.IGNORECASE
)


_THOUSANDS: Final = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+\.\d+")


def number_in(text: str) -> float | None:
    """Return the number that a text is, or None. Unlike `float`, no underscores, no other digits
    than ours. Commas separate thousands only where a decimal point follows.
    """
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        return float(stripped)
    return float(stripped.replace(",", "")) if _THOUSANDS.fullmatch(stripped) else None


def points_of(rows: Sequence[Row]) -> Iterator[Point]:
    """Yield rows as points. The step is the best column there is; without one, rows with the
    training loss are counted from 1, and others belong to the one above them.

    A counter that begins again with every epoch goes on instead.
    """
    chosen = find_axis(rows)
    steps = _continued(rows, chosen) if chosen else _counted(rows)
    for row, step in zip(rows, steps, strict=True):
        if step is not None:
            time = next((row[name] for name in row if name.lower() in _TIME_NAMES), None)
            is_time = time is not None and time > _FIRST_TIME
            values = {name: value for name, value in row.items() if name != chosen}
            yield Point(step, usual_time(time) if is_time else None, values)


def _counted(rows: Sequence[Row]) -> list[int | None]:
    """Return the number of each row among those with the loss that most of them have. Where the
    epoch falls, the training was started again, and the count goes back with it.
    """
    counts = Counter(name for row in rows for name in row)
    losses = loss_names(counts)
    if not losses:
        return list(range(1, len(rows) + 1))
    commonest = max(losses, key=counts.__getitem__)
    steps: list[int | None] = []
    epochs: list[float] = []  # those of the losses that stand, one for each step
    for row in rows:
        if commonest in row:
            epoch = row.get(_EPOCH, math.inf)
            if epochs and epoch < epochs[-1]:  # started again
                del epochs[bisect_left(epochs, epoch) :]
            epochs.append(epoch)
        steps.append(max(len(epochs), 1))
    return steps


def find_axis(rows: Sequence[Row]) -> str | None:
    """Return the column that counts steps: the best name that half of the rows have, with whole
    numbers that change. None if there is no such column.
    """
    by_name: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            by_name.setdefault(name, []).append(value)
    spelled = {name.lower(): name for name in reversed(by_name)}
    for candidate in _STEP_NAMES:
        name = spelled.get(candidate, "")
        values = by_name.get(name, [])
        if 2 * len(values) >= len(rows) and _counts(values):
            return name
    return None


def _counts(values: Sequence[float]) -> bool:
    """Return whether these are whole numbers that rise every few rows and seldom fall. A step may
    have several rows, and a restart or an epoch begins again; the steps of an argument in a text
    that was logged ("Step 1: …") fall all the time.
    """
    pairs = list(pairwise(values))
    num_rises = sum(after > before for before, after in pairs)
    num_falls = sum(after < before for before, after in pairs)
    rises = 8 * num_rises >= len(pairs) and 5 * num_falls <= max(num_rises, 5)
    return bool(values) and rises and all(map(_is_step, values))


def _is_step(value: float) -> bool:
    return math.isfinite(value) and value.is_integer() and abs(value) < MAX_STEP


def _continued(rows: Sequence[Row], axis: str) -> list[int | None]:
    """Return the step of every row; None where it has none."""
    found = [_step_of(row, axis) for row in rows]
    if axis == _EPOCH or not _begins_again(rows, found):
        return found
    length = _epoch_length([step for step in found if step is not None])
    done = 0
    last = 0
    steps: list[int | None] = []
    for step in found:
        if step is None:
            steps.append(None)
            continue
        if step < last:
            done += length
        last = step
        steps.append(done + step)
    return steps


def _begins_again(rows: Sequence[Row], steps: Sequence[int | None]) -> bool:
    """Return whether the counter falls, and with every fall the epoch rises."""
    known = [
        (step, row.get(_EPOCH, math.nan))
        for row, step in zip(rows, steps, strict=True)
        if step is not None
    ]
    falls = [(before, after) for before, after in pairwise(known) if after[0] < before[0]]
    return bool(falls) and all(after[1] > before[1] for before, after in falls)


def _step_of(row: Row, axis: str) -> int | None:
    """Return the step of a row: its axis, or what else it calls a step, as nanoGPT's lines about
    evaluations do.
    """
    others = [name for name in _STEP_NAMES if name in row and name != _EPOCH]
    for name in (axis, *others):
        if _is_step(row.get(name, math.nan)):
            return int(row[name])
    return None


def _epoch_length(steps: Sequence[int]) -> int:
    """Return how many steps an epoch has, from a counter that begins again with each: its highest
    value, and one more if it counts from 0.
    """
    spacing = min(
        (after - before for before, after in pairwise(steps) if after > before), default=1
    )
    return max(steps) + (spacing if min(steps) == 0 else 0)


def flattened(document: Mapping[str, Any], prefix: str = "") -> Row:
    """Return the numbers of a JSON object; nested ones get names with dots. Numbers written as text
    count. An object such as {"name": "loss", "value": 3.2} is the number that it names.
    """
    row: Row = {}
    title = _title_of_value(document)
    for name, value in document.items():
        full = usual_name(f"{prefix}{title if title and is_value(name) else name}")
        if is_number(value):
            row[full] = float(value)
        elif isinstance(value, str) and len(value) < 40:
            number = number_in(value)
            if number is not None:
                row[full] = number
        elif isinstance(value, Mapping) and prefix.count(".") < 4:
            row |= flattened(value, f"{full}.")
        elif isinstance(value, list) and len(value) < _MAX_LISTED:
            for entry in value:
                if isinstance(entry, Mapping) and _title_of_value(entry):
                    row |= flattened(entry, prefix)
    return row


def _title_of_value(document: Mapping[str, Any]) -> str:
    """Return the name that stands beside a value, or nothing."""
    values = [document[key] for key in document if is_value(key)]
    if not any(map(_is_written_number, values)):
        return ""
    titles = {key.lower(): document[key] for key in document if isinstance(document[key], str)}
    return next((titles[key] for key in KEY_COLUMNS if key in titles), "")


def is_value(name: str) -> bool:
    """Return whether a column holds the values of metrics that another column names."""
    return name.lower() in VALUE_COLUMNS


def _is_written_number(value: object) -> bool:
    return is_number(value) or (isinstance(value, str) and number_in(value) is not None)
