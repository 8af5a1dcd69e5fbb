"""The series of a run by name: from the record of every update if there is one, otherwise from the log.

    curves = RunCurves(run)
    curves.find("loss")            the full name: `loss`, `train.loss`, …
    curves.read("train.lr")        its values
    curves.updates.columns["lr"]   one number per update; NaN if missing

`loss`, `grad_norm`, `lr` and `weight` are columns of the update records (records/steps.py). All other names come from
the log. An update repeated after a restart replaces the earlier one and everything that followed it; the replaced
stretch is available as `superseded`.

The log is read through the index: a million records take 5 s the first time and 11 ms per series afterwards. A million
updates take 0.9 s once and 40 bytes of memory each; a refresh without new data is one `stat`. Arrays are replaced,
never changed, so callers may keep them.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from sonde.errors import SettingError, did_you_mean
from sonde.log.series import read_series
from sonde.records.files import open_regular
from sonde.records.index import RunIndex
from sonde.records.index_chunk import NO_STEP
from sonde.records.layout import LOG, STEPS, RunLayout
from sonde.records.reader import LineScanner, Record, parse_line
from sonde.records.seal import are_intact
from sonde.records.steps import STEP
from sonde.records.values import as_number
from sonde.report.curve import Curve, Integers

STEP_COLUMNS: Final = ("loss", "grad_norm", "lr", "weight")
_MAX_STEP: Final = 2**53
"""Above this, neither a float nor a browser can tell two steps apart."""
_BLOCK_BYTES: Final = 1 << 20
_MAX_NAMED: Final = 20
_EMPTY: Final = {"step": np.empty(0, np.int64), **{name: np.empty(0) for name in STEP_COLUMNS}}
_Columns: TypeAlias = dict[str, npt.NDArray[Any]]


class _Line(msgspec.Struct, gc=False):
    """The fields of an ordinary update record; anything else takes the slow path."""

    type: str
    step: int
    loss: float | str
    grad_norm: float | str | None = None
    lr: float | str | None = None
    weight: float | str | None = None
    skipped: str | None = None


_decode_lines: Final = msgspec.json.Decoder(_Line).decode_lines


class Updates:
    """The updates in one record file, which may grow, be replaced, or not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._filled: set[str] | None = None
        self._forget()

    @property
    def steps(self) -> Integers:
        """The step numbers of the current updates, without superseded ones."""
        return self.columns["step"]

    @property
    def num_bytes(self) -> int:
        """Memory used by the arrays, in bytes."""
        return sum(column.nbytes for column in self.columns.values())

    def refresh(self) -> None:
        """Read what was added to the file since the last call; read everything if the file was replaced."""
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
                elif len(pending) > _BLOCK_BYTES:  # no update record is that long
                    self._take_lines(self._scanner.lines(file))
                    break
            self._join()

    def has(self, name: str) -> bool:
        """Return whether the column has any values."""
        if self._filled is None:
            self._filled = {name for name in STEP_COLUMNS if np.isfinite(self.columns[name]).any()}
            self._filled |= {"loss"} if len(self.steps) else set()
        return name in self._filled

    def _forget(self) -> None:
        self.columns: _Columns = dict(_EMPTY)
        self.num_skipped = 0
        self.num_bad = 0
        """Number of records that are not valid updates."""
        self.replaced: list[_Columns] = []
        """The stretches that were superseded after a restart, in the order they were recorded."""
        self._parts: list[_Columns] = []
        self._filled = None
        self._scanner = LineScanner(self._path)

    def _take_block(self, block: bytes) -> None:
        start = self._scanner.offset
        self._scanner.offset += len(block) + 1
        lines = block.split(b"\n")
        try:
            decoded = _decode_lines(block)
            # numpy turns a missing number and the string "NaN" into NaN.
            columns = {name: np.array([getattr(one, name) for one in decoded], _EMPTY[name].dtype) for name in _EMPTY}
            low, high = columns["step"].min(), columns["step"].max()
            ordinary = all(one.type == STEP for one in decoded) and 0 <= low <= high <= _MAX_STEP
            ordinary = ordinary and are_intact([line for line in lines if line])
        except (ValueError, OverflowError, RecursionError):  # a line that is not an ordinary update record
            ordinary = False
        if ordinary:
            self._add(columns, sum(one.skipped is not None for one in decoded))
            return
        offsets = [start, *(start := start + len(line) + 1 for line in lines)]
        cleaned = ((at, self._scanner.clean(at, line)) for at, line in zip(offsets, lines, strict=False))
        self._take_lines((at, line) for at, line in cleaned if line)

    def _take_lines(self, lines: Iterable[tuple[int, bytes]]) -> None:
        kept: list[Record] = []
        for offset, line in lines:
            record = parse_line(self._scanner, offset, line)
            if record is None or record.get("type") != STEP:
                continue
            step = record.get("step")
            if isinstance(step, int) and 0 <= step <= _MAX_STEP and "loss" in record:
                kept.append(record)
            else:
                self.num_bad += 1
        numbers = {name: [_number(one.get(name)) for one in kept] for name in _EMPTY}
        columns = {name: np.array(column, _EMPTY[name].dtype) for name, column in numbers.items()}
        self._add(columns, sum(one.get("skipped") is not None for one in kept))

    def _add(self, columns: _Columns, num_skipped: int) -> None:
        """Add updates in the order of the file; one that goes back supersedes everything from its step on."""
        steps = columns["step"]
        self.num_skipped += num_skipped
        ends = [*np.flatnonzero(np.diff(steps) <= 0).tolist(), len(steps) - 1] if len(steps) else []
        start = 0
        for end in ends:
            self._go_back(int(steps[start]))
            self._parts.append({name: column[start : end + 1] for name, column in columns.items()})
            start = end + 1

    def _join(self) -> None:
        self._filled = None
        for (
            name
        ) in _EMPTY:  # popped as they are joined: a second copy of all columns would be 80 MB for a million updates
            parts = [columns.pop(name) for columns in self._parts]
            self.columns[name] = np.concatenate([self.columns[name], *parts]) if parts else self.columns[name]
        self._parts = []

    def _go_back(self, step: int) -> None:
        """Move everything from `step` on, if there is anything, to the superseded stretches."""
        steps = (self._parts[-1] if self._parts else self.columns)["step"]
        if not len(steps) or step > steps[-1]:
            return
        self._join()
        start = int(np.searchsorted(self.steps, step))
        self.replaced.append({name: column[start:] for name, column in self.columns.items()})
        self.columns = {name: column[:start] for name, column in self.columns.items()}


class RunCurves:
    """The series of one run directory, as of construction or the last refresh."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._layout = RunLayout(run)
        self.updates = Updates(self._layout.record_file(STEPS, 0))  # rank 0 stands for all
        """The update records."""
        self.index_later = False
        """While True, logged values are skipped, because building the index takes a while."""
        self._state: tuple[tuple[str, int, int], ...] | None = None
        self._read: dict[tuple[str, int | None], Curve] = {}
        self.refresh()

    @property
    def num_bytes(self) -> int:
        """Memory used, in bytes."""
        return self.updates.num_bytes + sum(16 * len(curve) for curve in self._read.values())

    def refresh(self) -> None:
        """Read what was written since the last refresh."""
        state = tuple((str(file.path), *_size_and_time(file.path)) for file in self._layout.record_files())
        if state != self._state:
            self._read = {}
            self._indexed: tuple[list[str], dict[str, int]] | None = None
            self.updates.refresh()
            self._state = state

    @property
    def logged(self) -> list[str]:
        """The names of the logged values."""
        return self._from_index()[0]

    @property
    def num_bad(self) -> dict[str, int]:
        """Number of unreadable lines by file."""
        return self._from_index()[1]

    @property
    def names(self) -> list[str]:
        """The names of everything that can be read."""
        columns = [name for name in STEP_COLUMNS if self.updates.has(name)]
        return columns + [name for name in self.logged if name not in columns]

    def find(self, name: str) -> str:
        """Return the full name for `name`: itself, with `train.` in front, or the only name that ends in it."""
        if self.updates.has(name):
            return name
        names = self.names
        for candidate in (name, f"train.{name}"):
            if candidate in names:
                return candidate
        matches = [one for one in names if one.endswith(f".{name}")]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise SettingError(f"{name} may be any of {', '.join(matches)}", hint="give the whole name")
        short = [*names, *(one.rpartition(".")[2] for one in names)]
        known = ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")
        hint = did_you_mean(name, short, f"it has {known}" if known else "it has logged no numbers yet")
        raise SettingError(f"{self._run} has no values called {name}", hint=hint)

    def first_of(self, names: Sequence[str], rank: int | None = None) -> Curve | None:
        """Return the first series of `names` that exists, or None; with `rank`, what that rank logged."""
        for name in names:
            if self.updates.has(name) or name in self.logged:
                return self.read(name, rank=rank)
        return None

    def read(self, name: str, *, rank: int | None = None) -> Curve:
        """Return the series with this full name; with `rank`, what that rank logged."""
        if rank is None and self.updates.has(name):
            return Curve(name=name, steps=self.updates.steps, values=self.updates.columns[name])
        found = self._read.get((name, rank))
        if found is None:
            series = read_series(self._run, name, rank=rank)
            known = series.iterations != NO_STEP
            steps, values = series.iterations[known], series.values[known]
            if np.any(np.diff(steps) < 0):  # iterations that restart with every epoch
                order = np.argsort(steps, kind="stable")
                steps, values = steps[order], values[order]
            found = self._read[name, rank] = Curve(name=name, steps=steps, values=values)
        return found

    def superseded(self, name: str) -> list[Curve]:
        """Return the stretches of a column that were replaced after a restart, in the order they were recorded."""
        replaced = self.updates.replaced if self.updates.has(name) else []
        return [Curve(name=name, steps=columns["step"], values=columns[name]) for columns in replaced]

    def _from_index(self) -> tuple[list[str], dict[str, int]]:
        """Read the index on first use: the curves of a run with update records do not need it."""
        if self.index_later:
            return [], {}
        if self._indexed is None:
            with RunIndex(self._layout) as index:
                index.refresh()
                files = self._layout.record_files()
                num_bad = {file.path.name: index.num_bad(file.kind, rank=file.rank) for file in files}
                self._indexed = (list(index.metrics(LOG)), num_bad)
            steps = self._layout.record_file(STEPS, 0).name
            if steps in num_bad:
                num_bad[steps] += self.updates.num_bad
        return self._indexed


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


def _number(value: Any) -> float:
    number = as_number(value)
    return (
        number if number is not None else np.inf if isinstance(value, int) else np.nan
    )  # inf for integers with hundreds of digits
