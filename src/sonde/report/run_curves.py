"""The series of a run by name: from the record of every update if there is one, otherwise from the log.

    curves = RunCurves(run)
    curves.find("loss")            the full name: `loss`, `train.loss`, …
    curves.read("train.lr")        its values
    curves.updates.columns["lr"]   one number per update; NaN if missing

`loss`, `grad_norm`, `lr` and `weight` are columns of the update records (records/journal.py). All other names come from
the log. An update repeated after a restart replaces the earlier one and everything that followed it; the replaced
stretch is available as `superseded`.

The log is read through the index: a million records take 5 s the first time and 11 ms per series afterwards. A million
updates take 0.9 s once and 40 bytes of memory each; a refresh without new data is one `stat`. Arrays are replaced,
never changed, so callers may keep them.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from sonde.errors import SettingError, did_you_mean
from sonde.log.series import read_series
from sonde.records.files import open_regular
from sonde.records.index import RunIndex
from sonde.records.journal import STEP
from sonde.records.layout import LOG, STEPS, RunLayout
from sonde.records.reader import LineScanner, parse_line
from sonde.records.seal import are_intact
from sonde.records.values import NO_STEP, as_number
from sonde.report.curve import Curve, Integers, line, panel, thin
from sonde.report.wording import visible
from sonde.spikes.detectors import Event

LOSS: Final = "loss"
VALIDATION_LOSS: Final = "validation loss"
SPEED: Final = "tokens per second"
CURVES: Final = {
    LOSS: ("loss", "train.loss", "train_loss"),
    VALIDATION_LOSS: ("val.loss", "valid.loss", "eval.loss", "val_loss", "eval_loss"),
    "gradient norm": ("grad_norm", "train.grad_norm"),
    "learning rate": ("lr", "train.lr", "learning_rate"),
    SPEED: ("train.ips", "ips", "tokens_per_second"),
}
"""The usual curves by title, each with the names that it may have in the records."""
_HEIGHTS: Final = {LOSS: 260, "gradient norm": 110, "learning rate": 90, SPEED: 90}
"""The usual panels by title, with their heights in pixels; evaluations are drawn on the first."""
_MAX_EVENTS: Final = 500
_MAX_SUPERSEDED: Final = 20
STEP_COLUMNS: Final = ("loss", "grad_norm", "lr", "weight")
_MAX_STEP: Final = 2**53
"""Above this, neither a float nor a browser can tell two steps apart."""
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
            file = open_regular(self._path)
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
            self._take(file)
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

    def _take(self, file: BinaryIO) -> None:
        """Take in the complete lines that follow, block by block."""
        for block in self._scanner.blocks(file):
            try:
                lines = _decode_lines(block)
                columns = _columns(lines)
                low, high = columns["step"].min(), columns["step"].max()
                is_ordinary = all(one.type == STEP for one in lines) and 0 <= low <= high <= _MAX_STEP
                is_ordinary = is_ordinary and are_intact([one for one in block.split(b"\n") if one])
            except (ValueError, OverflowError, RecursionError):  # a line that is not an ordinary update record
                is_ordinary = False
            if not is_ordinary:
                lines = list(self._one_by_one(block))
                columns = _columns(lines)
            self._add(columns, sum(one.skipped is not None for one in lines))

    def _one_by_one(self, block: bytes) -> Iterator[_Line]:
        """Yield the updates of a block in which some lines are something else, or damaged."""
        offset = self._scanner.offset
        for written in block.split(b"\n"):
            cleaned = self._scanner.clean(offset, written)
            record = parse_line(self._scanner, offset, cleaned) if cleaned else None
            offset += len(written) + 1
            if record is None or record.get("type") != STEP:
                continue
            step = record.get("step")
            if isinstance(step, int) and 0 <= step <= _MAX_STEP and "loss" in record:
                numbers = {name: _number(record.get(name)) for name in STEP_COLUMNS}
                yield _Line(type=STEP, step=step, **numbers, skipped=record.get("skipped"))
            else:
                self.num_bad += 1

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
        # Popped as they are joined: a second copy of all columns would be 80 MB for a million updates.
        for name in _EMPTY:
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
        self.refresh()

    @property
    def num_bytes(self) -> int:
        """Memory used, in bytes."""
        return self.updates.num_bytes + sum(16 * len(curve) for curve in self._read.values())

    def refresh(self) -> None:
        """Read what was written since the last refresh."""
        self._read: dict[tuple[str, int | None], Curve] = {}
        self._indexed: tuple[list[str], dict[str, int]] | None = None
        self.updates.refresh()

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


class Stretch(NamedTuple):
    """The part of a curve that is drawn."""

    first: float | None
    """Start of the range; None for the beginning."""
    last: float | None
    """End of the range; None for the end."""
    points: int
    """Maximum number of points."""

    def of(self, curve: Curve) -> Curve:
        """Return the values in the range and one beyond each end, so that lines reach the edges."""
        start = 0 if self.first is None else max(int(np.searchsorted(curve.steps, self.first)) - 1, 0)
        end = len(curve) if self.last is None else int(np.searchsorted(curve.steps, self.last, side="right")) + 1
        return curve.at(slice(start, end))


def run_data(
    curves: RunCurves,
    events: Sequence[Event],
    stretch: Stretch,
    *,
    metrics: Sequence[str] = (),
    rank: int | None = None,
    reach: int = 0,
) -> dict[str, Any]:
    """Return what curve.js draws of a run: the usual panels, or one per metric; of one rank, or the mean over all.

    Superseded stretches are drawn behind a curve, evaluations as dots on top. Every value within `reach` steps of an
    event is kept.
    """
    events = events[:_MAX_EVENTS]
    around = [step for event in events for step in (event.first_step, event.peak_step)]
    panels, ends = [], []
    usual = [(title, CURVES[title], height) for title, height in _HEIGHTS.items()]
    for title, names, height in [(name, (name,), 150) for name in metrics] or usual:
        curve = curves.first_of(names, rank)
        if curve is None or not len(curve):
            continue
        validation = curves.first_of(CURVES[VALIDATION_LOSS]) if names is CURVES[LOSS] else None
        ghosts = curves.superseded(curve.name)[-_MAX_SUPERSEDED:] if rank is None else []
        drawn = [("", "ghost", one) for one in ghosts]
        drawn += [("" if validation is None else "train", "line", curve)]
        drawn += [] if validation is None else [("validation", "dots", validation)]
        ends += [one.steps[[0, -1]].tolist() for _, _, one in drawn if len(one)]
        lines = [
            line(label, kind, thin(stretch.of(one), stretch.points, around=around, reach=reach))
            for label, kind, one in drawn
            if len(one.finite())
        ]
        panels.append(panel(title, lines, height, stretch.of(curve)))
    marks = []
    for event in events:
        label = visible(f"{event.kind} of {event.metric.replace('_', ' ')}")
        marks.append({"first": event.first_step, "last": event.last_step, "label": label})
    whole = [float(min(low for low, _ in ends)), float(max(high for _, high in ends))] if ends else None
    return {"panels": panels, "events": marks, "whole": whole}


def _columns(lines: Sequence[_Line]) -> _Columns:
    # numpy turns a missing number and the string "NaN" into NaN.
    return {name: np.array([getattr(one, name) for one in lines], _EMPTY[name].dtype) for name in _EMPTY}


def _number(value: Any) -> float:
    number = as_number(value)
    if number is None:  # infinite: an integer with hundreds of digits
        return np.inf if isinstance(value, int) else np.nan
    return number
