"""The series of a run by name: from the record of every update if there is one, otherwise from the
log.

    curves = RunCurves(run)
    curves.find("loss")            the full name: `loss`, `train.loss`, …
    curves.read("train.lr")        its values
    curves.usual("loss")           the loss, however the run calls it: `train/loss`, `Loss.train`
    curves.updates.columns["lr"]   one number per update; NaN if missing

`loss`, `grad_norm`, `lr` and `weight` are columns of the update records (records/journal.py). All
other names come from the log. An update repeated after a restart replaces the earlier one and
everything that followed it; the replaced stretch is available as `superseded`.

Steps that were logged as [epoch, iteration] are put in a row: if iterations restart with every
epoch, those of the second epoch follow those of the first. A value of a whole epoch ([epoch]) is at
the epoch's end.

The log is read through the index: a million records take 5 s the first time and 11 ms per series
afterwards. A million updates take 0.9 s once and 40 bytes of memory each; a refresh without new
data is one `stat`. Arrays are replaced, never changed, so callers may keep them.
"""

import os
import re
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
from sonde.report.curve import Curve

LOSS: Final = "loss"
VALIDATION_LOSS: Final = "validation loss"
SPEED: Final = "tokens per second"
GRADIENT_NORM: Final = "gradient norm"
LEARNING_RATE: Final = "learning rate"
CURVES: Final = {
    LOSS: ("loss", "train.loss", "loss.train", "training.loss", "train.train.loss"),
    VALIDATION_LOSS: (
        *("val.loss", "valid.loss", "eval.loss", "validation.loss", "dev.loss"),
        *("loss.val", "loss.valid", "loss.eval", "loss.validation", "eval.eval.loss"),
    ),
    GRADIENT_NORM: ("grad_norm", "train.grad_norm", "gradient_norm", "train.gradient_norm"),
    LEARNING_RATE: ("lr", "train.lr", "learning_rate", "train.learning_rate", "optim.lr"),
    SPEED: (
        *("train.ips", "ips", "tokens_per_second", "train.tokens_per_second"),
        *("tokens_per_sec", "train.tokens_per_sec", "tok_per_sec", "throughput"),
    ),
}
"""The usual curves by title, each with the names that it may have in the records.

A name counts however it is spelled: `train/loss`, `train loss` and `Train.Loss` are one name.
"""
_SEPARATORS: Final = re.compile(r"[\s/._:-]+")
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
        """Read what was added to the file since the last call; read everything if the file was
        replaced.
        """
        try:
            file = open_regular(self._path)
        except OSError:
            self._forget()
            return
        with file:
            found = os.fstat(file.fileno())
            identity = (found.st_dev, found.st_ino)
            if identity != self._identity or found.st_size < self._scanner.offset:
                self._forget()
                self._identity = identity
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
            self.num_skipped += sum(update.skipped is not None for update in updates)
            parts.append(_columns(updates))
        # Popped as they are joined: a second copy of all columns would be 40 MB for a million
        # updates.
        self.columns = {
            name: np.concatenate([part.pop(name) for part in parts]) for name in _COLUMNS
        }
        self._go_back()
        self.filled = {name for name in STEP_COLUMNS if np.isfinite(self.columns[name]).any()}
        self.filled |= {"loss"} if len(self.steps) else set()

    def _updates(self, block: bytes) -> list[_Update]:
        """Return the updates in a block of lines, at once if they are nothing else, otherwise line
        by line.
        """
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
        """Move what was superseded out of the columns: an update that goes back replaces everything
        from its step on.
        """
        steps = self.steps
        columns = self.columns
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
        self._indexed: _Indexed | None = None
        self._has_epochs = False
        self._known_epochs: _Epochs | None = None
        self.updates.refresh()

    @property
    def logged(self) -> list[str]:
        """The names of the logged values."""
        return list(self._from_index().counts)

    @property
    def num_bad(self) -> dict[str, int]:
        """Number of unreadable lines by file."""
        return self._from_index().num_bad

    @property
    def names(self) -> list[str]:
        """The names of everything that can be read."""
        columns = [name for name in STEP_COLUMNS if name in self.updates.filled]
        return columns + [name for name in self.logged if name not in columns]

    def find(self, name: str) -> str:
        """Return the full name for `name`: itself, with `train.` in front, or the only name that
        ends in it.
        """
        if name in self.updates.filled:
            return name
        names = self.names
        whole = [full for full in (name, f"train.{name}", f"train/{name}") if full in names][:1]
        matches = whole or [full for full in names if full.endswith((f".{name}", f"/{name}"))]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise SettingError(
                f"{name} may be any of {', '.join(matches)}", hint="give the whole name"
            )
        short = [*names, *(re.split("[./]", full)[-1] for full in names)]
        known = ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")
        hint = did_you_mean(
            name, short, f"it has {known}" if known else "it has logged no numbers yet"
        )
        raise SettingError(f"{self._run} has no values called {name}", hint=hint)

    def usual(self, title: str) -> str | None:
        """Return the name that one of the usual curves has in this run; None if it has none."""
        names = CURVES[title]
        for name in names:
            if name in self.updates.filled or name in self.logged:
                return name
        spelled = {spelling(name): name for name in reversed(self.logged)}
        found = (spelled.get(spelling(name)) for name in names)
        return next((name for name in found if name is not None), None)

    def read_usual(self, title: str, rank: int | None = None) -> Curve | None:
        """Return one of the usual curves, or None; with `rank`, what that rank logged."""
        name = self.usual(title)
        return None if name is None else self.read(name, rank=rank)

    def has(self, name: str) -> bool:
        """Return whether there are values with this full name."""
        return name in self.updates.filled or name in self.logged

    def read(self, name: str, *, rank: int | None = None) -> Curve:
        """Return the series with this full name; with `rank`, what that rank logged."""
        if rank is None and name in self.updates.filled:
            return Curve(name=name, steps=self.updates.steps, values=self.updates.columns[name])
        found = self._read.get((name, rank))
        if found is None:
            series = read_series(self._run, name, rank=rank)
            steps = self._in_a_row(series.steps)
            known = steps != NO_STEP
            steps = steps[known]
            values = series.values[known]
            if np.any(np.diff(steps) < 0):
                order = np.argsort(steps, kind="stable")
                steps = steps[order]
                values = values[order]
            found = self._read[name, rank] = Curve(name=name, steps=steps, values=values)
        return found

    def place_of(self, step: Sequence[int]) -> int:
        """Return where a step stands in the row of all steps, given its one to three numbers."""
        padded = [*step, *[NO_STEP] * (2 - len(step))][:2]
        if len(step) < 2 and self._epochs() is None:
            return step[0]
        return int(self._in_a_row(np.array([padded], np.int64))[0])

    def _in_a_row(self, steps: Integers) -> Integers:
        """Return one number for every step, so that epochs follow one another."""
        if steps.ndim == 1:
            return steps
        if steps.shape[1] == 1:
            return steps[:, 0]
        epochs = self._epochs()
        iterations = steps[:, 1]
        if epochs is None:
            return np.where(iterations == NO_STEP, steps[:, 0], iterations)
        return epochs.places(steps[:, 0], iterations)

    def _epochs(self) -> "_Epochs | None":
        """Return how long the epochs are, from the values that were logged most often."""
        if not self._has_epochs:
            self._has_epochs = True
            self._known_epochs = None
            if self.logged:
                counts = self._from_index().counts
                series = read_series(self._run, max(counts, key=lambda name: counts[name]))
                self._known_epochs = _epochs_of(series.steps)
        return self._known_epochs

    def superseded(self, name: str) -> list[Curve]:
        """Return the stretches of a column that were replaced after a restart, in the order they
        were recorded.
        """
        replaced = self.updates.replaced if name in self.updates.filled else []
        return [
            Curve(name=name, steps=columns["step"], values=columns[name]) for columns in replaced
        ]

    @property
    def repeated(self) -> list[tuple[int, int]]:
        """The first and the last step of each stretch that was recorded again after a restart."""
        stretches = [columns["step"] for columns in self.updates.replaced]
        return [(int(steps[0]), int(steps[-1])) for steps in stretches if len(steps)]

    def _from_index(self) -> "_Indexed":
        """Read the index on first use: the curves of a run with update records do not need it."""
        if self.index_later:
            return _Indexed({}, {})
        if self._indexed is None:
            with RunIndex(self._layout) as index:
                index.refresh()
                files = self._layout.record_files()
                num_bad = {
                    file.path.name: index.num_bad(file.kind, rank=file.rank) for file in files
                }
                self._indexed = _Indexed(index.metrics(LOG), num_bad)
            steps = self._layout.record_file(STEPS, 0).name
            if steps in num_bad:
                num_bad[steps] += self.updates.num_bad
        return self._indexed


class _Indexed(NamedTuple):
    """What the index says about a run."""

    counts: dict[str, int]
    """The number of values of every logged name."""
    num_bad: dict[str, int]
    """The number of unreadable lines by file."""


class _Epochs(NamedTuple):
    """Where the epochs of a run begin and end in the row of all steps."""

    numbers: Integers
    """The epochs, in order."""
    starts: Integers
    """What is added to an iteration of the epoch."""
    ends: Integers
    """The place of the last iteration of the epoch."""

    def places(self, epochs: Integers, iterations: Integers) -> Integers:
        """Return the place of every step, given its epoch and its iteration (or NO_STEP)."""
        at = np.searchsorted(self.numbers, epochs, side="right") - 1
        at = np.clip(at, 0, len(self.numbers) - 1)
        is_whole_epoch = iterations == NO_STEP
        inside = np.where(is_whole_epoch, 0, iterations)
        places = np.where(is_whole_epoch, self.ends[at], self.starts[at] + inside)
        return np.where(epochs == NO_STEP, NO_STEP, places)


def _epochs_of(steps: Integers) -> _Epochs | None:
    """Return the epochs of steps of the form [epoch, iteration]; None if they have another form."""
    if steps.ndim == 1 or steps.shape[1] < 2:
        return None
    rows = steps[(steps[:, 0] != NO_STEP) & (steps[:, 1] != NO_STEP)]
    if not len(rows):
        return None
    numbers = np.unique(rows[:, 0])
    iterations = [rows[rows[:, 0] == number, 1] for number in numbers]
    firsts = np.array([int(found.min()) for found in iterations], np.int64)
    lasts = np.array([int(found.max()) for found in iterations], np.int64)
    restarts = bool(np.any(firsts[1:] <= lasts[:-1]))
    starts = np.zeros(len(numbers), np.int64)
    if restarts:
        # iterations from 0 on: the first one takes a place too
        lengths = lasts + (1 if int(firsts.min()) == 0 else 0)
        starts[1:] = np.cumsum(lengths)[:-1]
    return _Epochs(numbers, starts, starts + lasts)


def spelling(name: str) -> str:
    """Return a name in one spelling: lower case, with dots between its words."""
    return _SEPARATORS.sub(".", name.strip()).lower()


def prefix_of(name: str) -> str:
    """Return the section that a name belongs to: what stands before its first slash, or else before
    its first dot.
    """
    if "/" in name:
        return name.partition("/")[0]
    return name.partition(".")[0] if "." in name else ""


def _columns(updates: Sequence[_Update]) -> _Columns:
    # numpy turns a missing number into NaN.
    return {
        name: np.array([getattr(update, name) for update in updates], dtype)
        for name, dtype in _COLUMNS.items()
    }
