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
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from sonde.errors import SettingError, did_you_mean
from sonde.log.series import read_series
from sonde.records.columns import Integers
from sonde.records.files import open_regular
from sonde.records.index import RunIndex
from sonde.records.journal import STEP
from sonde.records.layout import LOG, STEPS, RunLayout
from sonde.records.reader import LineScanner, decode_block, parse_line
from sonde.records.values import NO_STEP
from sonde.report.curve import Curve, line, panel, thin
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
_COLUMNS: Final = {"step": np.int64, **dict.fromkeys(STEP_COLUMNS, np.float64)}
_Columns: TypeAlias = dict[str, npt.NDArray[Any]]


class _Update(msgspec.Struct, gc=False):
    """What is read of an update record. Of a number, the text "NaN" is accepted too."""

    type: Literal["STEP"]
    step: Annotated[int, msgspec.Meta(ge=0, le=_MAX_STEP)]
    loss: float
    grad_norm: float | None = None
    lr: float | None = None
    weight: float | None = None
    skipped: str | None = None


_decoder: Final = msgspec.json.Decoder(_Update, strict=False)


class Updates:
    """The updates in one record file, which may grow, be replaced, or not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._forget()

    @property
    def steps(self) -> Integers:
        """The step numbers of the current updates, without superseded ones."""
        return self.columns["step"]

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
            if found.st_size > self._scanner.offset:
                self._take(file)

    def _forget(self) -> None:
        self.columns: _Columns = _columns([])
        self.num_skipped = 0
        self.num_bad = 0
        """Number of records that are not valid updates."""
        self.replaced: list[_Columns] = []
        """The stretches that were superseded after a restart, in the order they were recorded."""
        self.filled: set[str] = set()
        """The columns that have any values."""
        self._scanner = LineScanner(self._path)

    def _take(self, file: BinaryIO) -> None:
        """Take in the complete lines that follow, block by block."""
        parts = [self.columns]
        for block in self._scanner.blocks(file):
            updates = self._updates(block)
            self.num_skipped += sum(one.skipped is not None for one in updates)
            parts.append(_columns(updates))
        # Popped as they are joined: a second copy of all columns would be 40 MB for a million updates.
        self.columns = {name: np.concatenate([part.pop(name) for part in parts]) for name in _COLUMNS}
        self._go_back()
        self.filled = {name for name in STEP_COLUMNS if np.isfinite(self.columns[name]).any()}
        self.filled |= {"loss"} if len(self.steps) else set()

    def _updates(self, block: bytes) -> list[_Update]:
        """Return the updates in a block of lines, at once if they are nothing else, otherwise line by line."""
        together = decode_block(_decoder, block)
        if together is not None:
            return together
        found = []
        for offset, written in self._scanner.lines_of(block):
            record = parse_line(self._scanner, offset, written)
            if record is not None and record.get("type") == STEP:
                try:
                    found.append(msgspec.convert(record, _Update, strict=False))
                except msgspec.ValidationError:
                    self.num_bad += 1
        return found

    def _go_back(self) -> None:
        """Move what was superseded out of the columns: an update that goes back replaces everything from its step on."""
        steps, columns = self.steps, self.columns
        starts = (np.flatnonzero(np.diff(steps) <= 0) + 1).tolist()
        if not starts:
            return
        kept = np.arange(starts[0])
        for start, end in pairwise([*starts, len(steps)]):
            num_kept = int(np.searchsorted(steps[kept], steps[start]))
            gone = kept[num_kept:]
            self.replaced.append({name: column[gone] for name, column in columns.items()})
            kept = np.concatenate([kept[:num_kept], np.arange(start, end)])
        self.columns = {name: column[kept] for name, column in columns.items()}


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
        columns = sum(column.nbytes for column in self.updates.columns.values())
        return columns + sum(16 * len(curve) for curve in self._read.values())

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
        columns = [name for name in STEP_COLUMNS if name in self.updates.filled]
        return columns + [name for name in self.logged if name not in columns]

    def find(self, name: str) -> str:
        """Return the full name for `name`: itself, with `train.` in front, or the only name that ends in it."""
        if name in self.updates.filled:
            return name
        names = self.names
        whole = [one for one in (name, f"train.{name}") if one in names][:1]
        matches = whole or [one for one in names if one.endswith(f".{name}")]
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
            if name in self.updates.filled or name in self.logged:
                return self.read(name, rank=rank)
        return None

    def read(self, name: str, *, rank: int | None = None) -> Curve:
        """Return the series with this full name; with `rank`, what that rank logged."""
        if rank is None and name in self.updates.filled:
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
        replaced = self.updates.replaced if name in self.updates.filled else []
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


def _columns(updates: Sequence[_Update]) -> _Columns:
    # numpy turns a missing number into NaN.
    return {name: np.array([getattr(one, name) for one in updates], dtype) for name, dtype in _COLUMNS.items()}
