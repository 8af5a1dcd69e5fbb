"""The numbers of records as columns, for the index and for readers of logs. Pure.

Every number in a record's `data` object is a metric. Keys of nested objects are joined with dots
(`{"eval": {"loss": 1}}` is `eval.loss`), down to 16 levels. True and False are 1 and 0; the strings
"NaN", "Infinity" and "-Infinity" are the numbers they spell; everything becomes float64, so
integers beyond 2**53 are rounded. Other strings, lists and null are not metrics. If a name occurs
twice in one record, the later value counts.

A value takes 12 bytes of memory, plus 9 to 25 per record for its step.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sonde.records.values import NO_STEP, as_number, step_numbers

_MAX_NESTING: Final = 16

Integers = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Series:
    """The values of one metric, in order."""

    steps: Integers
    """One number per value. If any step is a list, one row per value (epoch, iteration, validation
    iteration), padded with NO_STEP, which also stands for steps that are not numbers.
    """
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    @property
    def iterations(self) -> Integers:
        """One number per value: the step, or a list's iteration, or its epoch if it has none;
        NO_STEP if unknown.
        """
        if self.steps.ndim == 1:
            return self.steps
        if self.steps.shape[1] == 1:
            return self.steps[:, 0]
        return np.where(self.steps[:, 1] == NO_STEP, self.steps[:, 0], self.steps[:, 1])

    def step_at(self, position: int) -> int | list[int] | None:
        """Return the step of one value, as logged; None if it had no numbers."""
        numbers: list[int] = [
            number for number in np.atleast_1d(self.steps[position]).tolist() if number != NO_STEP
        ]
        if self.steps.ndim == 1:
            return numbers[0] if numbers else None
        return numbers or None


class Columns:
    """Records in order: the step of each, and for every metric the rows that have it. Read only
    after all were added.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self.is_list = bytearray()
        """For each row, whether its step is a list."""
        self._steps: list[Integers] = []
        self._pieces: dict[str, list[tuple[Rows, Floats]]] = {}

    def add(self, steps: list[Any], data: list[Any], *, decoded: bool) -> None:
        """Add records by their steps and `data`. In what `values.decode` returned, the text "NaN"
        is text.
        """
        rows = self._grow(steps)
        if set(map(type, data)) != {dict}:
            rows = rows[[type(numbers) is dict for numbers in data]]
            data = [numbers for numbers in data if type(numbers) is dict]
        self._add_objects(rows, data, "", 1, decoded)

    def add_metric(self, steps: list[Any], metric: str, values: list[Any]) -> None:
        """Add records of which only one metric is of interest, by their steps and undecoded
        values.
        """
        self._add_values(metric, self._grow(steps), values, 1, decoded=False)

    @property
    def names(self) -> list[str]:
        """The metrics, in order of first appearance."""
        return list(self._pieces)

    def numbers(self, metric: str) -> tuple[Rows, Floats]:
        """Return the rows that have a number of this metric, ascending, and the numbers."""
        if metric not in self._pieces:
            return np.empty(0, np.int32), np.empty(0)
        rows, numbers = (np.concatenate(parts) for parts in zip(*self._pieces[metric], strict=True))
        if np.any(rows[1:] <= rows[:-1]):
            order = np.argsort(rows, kind="stable")
            rows = rows[order]
            numbers = numbers[order]
            is_last = np.append(rows[1:] != rows[:-1], True)
            rows = rows[is_last]
            numbers = numbers[is_last]
        return rows, numbers

    @cached_property
    def steps(self) -> Integers:
        """The steps, one row per record, as wide as the widest."""
        return join_rows(self._steps) if self._steps else np.empty((0, 1), np.int64)

    def series(self, metric: str) -> Series:
        """Return the numbers of a metric."""
        rows, values = self.numbers(metric)
        return Series(steps=self.steps_at(rows), values=values)

    def steps_at(self, rows: Rows) -> Integers:
        """Return the steps of some rows in the form of a series."""
        steps = self.steps if len(rows) == self.num_rows else self.steps[rows]
        return steps if 1 in self.is_list else steps[:, 0]

    def _grow(self, steps: list[Any]) -> Rows:
        """Add rows with these steps; return their numbers."""
        first = self.num_rows
        self.num_rows = self.num_rows + len(steps)
        self._steps.append(_step_rows(steps))
        has_list = list in set(map(type, steps))
        self.is_list += (
            bytes([type(step) is list for step in steps]) if has_list else bytes(len(steps))
        )
        return np.arange(first, self.num_rows, dtype=np.int32)

    def _add_objects(
        self, rows: Rows, objects: list[dict[Any, Any]], prefix: str, nesting: int, decoded: bool
    ) -> None:
        """Add every metric of these objects; those with the same keys become one matrix."""
        alike: dict[tuple[Any, ...], Any] = dict.fromkeys(map(tuple, objects), slice(None))
        if len(alike) > 1:  # not the usual case, which takes half the time
            alike = {keys: [] for keys in alike}
            for place, keys in enumerate(map(tuple, objects)):
                alike[keys].append(place)
        for keys, places in alike.items():
            where = rows[places]
            members = objects if isinstance(places, slice) else [objects[place] for place in places]
            try:
                numbers = list(chain.from_iterable(map(dict.values, members)))
                matrix = _as_floats(numbers).reshape(len(members), len(keys))
            except (TypeError, OverflowError):
                for key in keys:
                    self._add_values(
                        f"{prefix}{key}", where, [child[key] for child in members], nesting, decoded
                    )
            else:
                for key, column in zip(keys, matrix.T, strict=True):
                    self._pieces.setdefault(f"{prefix}{key}", []).append((where, column))

    def _add_values(
        self, name: str, rows: Rows, values: list[Any], nesting: int, decoded: bool
    ) -> None:
        """Add the metrics under one key: numbers, spelled numbers, nested objects and others, in
        any mixture.
        """
        try:
            numbers = _as_floats(values)
            where = rows
        except (TypeError, OverflowError):
            found = [
                None if decoded and isinstance(value, str) else as_number(value) for value in values
            ]
            numbers = _as_floats([number for number in found if number is not None])
            where = rows[[number is not None for number in found]]
        if len(numbers):
            self._pieces.setdefault(name, []).append((where, numbers))
        if len(numbers) == len(values):
            return
        nested = [value for value in values if type(value) is dict]
        if nested and nesting < _MAX_NESTING:
            where = rows[[type(value) is dict for value in values]]
            self._add_objects(where, nested, f"{name}.", nesting + 1, decoded)


def join_rows(parts: Sequence[Integers]) -> Integers:
    """Concatenate rows of steps, padded to the widest."""
    # Filled in place: padding and concatenating the parts takes twice as long.
    joined = np.full(
        (sum(map(len, parts)), max(part.shape[1] for part in parts)), NO_STEP, np.int64
    )
    end = 0
    for part in parts:
        start = end
        end = end + len(part)
        joined[start:end, : part.shape[1]] = part
    return joined


def _as_floats(numbers: list[Any]) -> Floats:
    # array("d") instead of numpy: it accepts only ints, floats and bools, while numpy would also
    # read the text "1.5".
    return np.frombuffer(array("d", numbers), np.float64)


def _step_rows(steps: list[Any]) -> Integers:
    """Return one row per step, as wide as the widest."""
    try:
        # three times as fast as np.array
        return np.frombuffer(array("q", steps), np.int64).reshape(-1, 1)
    except (TypeError, OverflowError):
        pass  # lists, text, null: one by one
    numbers = [step_numbers(step) for step in steps]
    width = max(1, *map(len, numbers))
    return np.array([(*step, *[NO_STEP] * (width - len(step))) for step in numbers], np.int64)
