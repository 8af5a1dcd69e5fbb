"""The records of updates as columns: those that stand, and the stretches that a restart replaced. Taken in as they are appended.

    updates = Updates(path)
    updates.refresh()              reads what was appended since the last time
    updates.columns["loss"]        one number an update; NaN where it has none

An update that was made again after a restart takes the place of the one before, and of all that had followed.
Cost: 0.9 µs a record, 40 bytes of memory; a refresh without news is one `stat`. Arrays are replaced, never changed: whoever holds one may keep it.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, final

import msgspec
import numpy as np

from sonde.records.files import open_regular
from sonde.records.reader import LineScanner, Record, parse_line
from sonde.records.seal import are_intact
from sonde.records.steps import STEP
from sonde.records.values import as_number
from sonde.report.curve import Curve, Floats, Integers

STEP_COLUMNS: Final = ("loss", "grad_norm", "lr", "weight")
_MAX_STEP: Final = 2**53
"""Beyond it neither a float nor a browser tells two steps apart."""
_BLOCK_BYTES: Final = 1 << 20


@final
class _Line(msgspec.Struct, gc=False):
    """What an ordinary record of an update holds; anything else is looked at more closely."""

    type: str
    step: int
    loss: float | str
    grad_norm: float | str | None = None
    lr: float | str | None = None
    weight: float | str | None = None
    skipped: str | None = None


_decode_lines: Final = msgspec.json.Decoder(_Line).decode_lines


@final
class Updates:
    """The updates in one record file, which may grow, be replaced, or not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._filled: set[str] | None = None
        self._forget()

    @property
    def num_bytes(self) -> int:
        """The memory of its arrays."""
        return self.steps.nbytes * (1 + len(self.columns))

    def refresh(self) -> None:
        """Take in what the file has gained since the last time; all of it when it is another file now."""
        try:
            file = open_regular(self._path, buffering=0)
        except OSError:
            self._forget()
            return
        with file:
            found = os.fstat(file.fileno())
            if (found.st_dev, found.st_ino) != self._identity or found.st_size < self._scanner.offset:
                self._forget()
                self._identity = (found.st_dev, found.st_ino)
            if found.st_size == self._scanner.offset:
                return
            file.seek(self._scanner.offset)
            pending = b""
            while block := file.read(_BLOCK_BYTES):
                whole, newline, pending = (pending + block).rpartition(b"\n")
                if newline:
                    self._take_block(whole)
                elif len(pending) > _BLOCK_BYTES:  # no record of an update is that long
                    self._take_lines(self._scanner.lines(file))
                    break
            self._join()

    def has(self, name: str) -> bool:
        """Was this column ever filled?"""
        if self._filled is None:
            found = {name for name, column in self.columns.items() if np.isfinite(column).any()}
            self._filled = found | ({"loss"} if len(self.steps) else set())
        return name in self._filled

    def curve(self, name: str) -> Curve:
        """A column; NaN where an update lacks it."""
        return Curve(name=name, steps=self.steps, values=self.columns[name])

    def superseded(self, name: str) -> list[Curve]:
        """The stretches of a column that were replaced, in the order they were recorded."""
        return [Curve(name=name, steps=steps, values=columns[name]) for steps, columns in self._replaced]

    def _forget(self) -> None:
        self.steps: Integers = np.empty(0, np.int64)
        self.columns: dict[str, Floats] = {name: np.empty(0) for name in STEP_COLUMNS}
        self.num_skipped = 0
        self.num_bad = 0
        """Records that are no updates, whatever they say."""
        self._replaced: list[tuple[Integers, dict[str, Floats]]] = []
        self._parts: list[tuple[Integers, dict[str, Floats]]] = []
        self._filled = None
        self._scanner = LineScanner(self._path)

    def _take_block(self, block: bytes) -> None:
        start = self._scanner.offset
        self._scanner.offset += len(block) + 1
        try:
            lines = _decode_lines(block)
            steps = np.array([line.step for line in lines], np.int64)
            # A missing number becomes NaN, and "NaN" is one, by numpy's own rules.
            columns = {name: np.array([getattr(line, name) for line in lines], np.float64) for name in STEP_COLUMNS}
            ordinary = all(line.type == STEP for line in lines) and steps[0] > self._last_step
            ordinary = ordinary and steps[-1] <= _MAX_STEP and bool(np.all(np.diff(steps) > 0))
            ordinary = ordinary and are_intact(block.rstrip(b"\n").split(b"\n"))
        except (ValueError, OverflowError, IndexError, RecursionError):  # a line that is no such record
            ordinary = False
        if ordinary:
            self.num_skipped += sum(line.skipped is not None for line in lines)
            self._parts.append((steps, columns))
            return
        offsets = [start, *(start := start + len(line) + 1 for line in block.split(b"\n"))]
        cleaned = ((at, self._scanner.clean(at, line)) for at, line in zip(offsets, block.split(b"\n"), strict=False))
        self._take_lines((at, line) for at, line in cleaned if line)

    def _take_lines(self, lines: Iterable[tuple[int, bytes]]) -> None:
        kept: list[Record] = []
        last = self._last_step
        for offset, line in lines:
            record = parse_line(self._scanner, offset, line)
            if record is None or record.get("type") != STEP:
                continue
            step = record.get("step")
            if not isinstance(step, int) or not 0 <= step <= _MAX_STEP or "loss" not in record:
                self.num_bad += 1
                continue
            if step <= last:
                self._keep(kept)
                kept = []
                self._go_back(step)
            kept.append(record)
            last = step
        self._keep(kept)

    @property
    def _last_step(self) -> int:
        steps = self._parts[-1][0] if self._parts else self.steps
        return int(steps[-1]) if len(steps) else -1

    def _keep(self, records: list[Record]) -> None:
        if records:
            self.num_skipped += sum(record.get("skipped") is not None for record in records)
            columns = {name: np.array([_number(one.get(name)) for one in records]) for name in STEP_COLUMNS}
            self._parts.append((np.array([one["step"] for one in records], np.int64), columns))

    def _join(self) -> None:
        self._filled = None
        if self._parts:
            self.steps = np.concatenate([self.steps, *(steps for steps, _ in self._parts)])
            for (
                name
            ) in STEP_COLUMNS:  # taken out as they are joined: two copies of all columns would be 80 MB for a million
                parts = [columns.pop(name) for _, columns in self._parts]
                self.columns[name] = np.concatenate([self.columns[name], *parts])
            self._parts = []

    def _go_back(self, step: int) -> None:
        """Everything from `step` on was made again."""
        self._join()
        start = int(np.searchsorted(self.steps, step))
        self._replaced.append((self.steps[start:], {name: column[start:] for name, column in self.columns.items()}))
        self.steps = self.steps[:start]
        self.columns = {name: column[:start] for name, column in self.columns.items()}


def _number(value: Any) -> float:
    number = as_number(value)
    return number if number is not None else np.inf if isinstance(value, int) else np.nan  # inf: hundreds of digits
