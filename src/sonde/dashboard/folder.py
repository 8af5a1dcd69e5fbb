"""The runs below a folder, named by relative path as in URLs. A name is looked up, never joined to
a path.

Viewed runs stay open within a memory budget, so that a curve of a million steps is cut and thinned
in milliseconds. A large run without an index is indexed in a separate process, because indexing
takes 130 MB that a server would not give back. Until then, everything that does not need the index
is shown.
"""

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from sonde.errors import RunNotFound, SondeError
from sonde.forensics.verdict import SURE, Verdict
from sonde.records.catalog import RunSummary, find_runs, run_status, summarise_run
from sonde.records.layout import LOG, SPIKES, STEPS, RunLayout
from sonde.records.manifest import RUNNING, read_manifest
from sonde.records.reader import newest_records
from sonde.records.values import as_number, step_numbers
from sonde.report.curve import Curve
from sonde.report.facts import read_verdicts
from sonde.report.marks import Mark, read_marks, worst_marks
from sonde.report.run_curves import CURVES, LOSS, RunCurves, spelling
from sonde.spikes.spike_log import SpikeLog, read_spikes

State: TypeAlias = dict[str, tuple[int, int]]
"""Size and modification time of everything in a run that may change, by name."""

SONDE: Final = (
    sys.executable,
    *(
        "-c",
        "import sys; sys.path[:] = filter(None, sys.path); from sonde.cli.main import main; main()",
    ),
)
"""Command that runs this sonde as a process. Not `-m`, which would import from the server's working
directory.
"""
_INDEX: Final = (
    sys.executable,
    "-c",
    (
        "import sys; sys.path[:] = filter(None, sys.path); from pathlib import Path;"
        " from sonde.records.index import RunIndex; from sonde.records.layout import RunLayout;"
        " RunIndex(RunLayout(Path(sys.argv[1]))).refresh()"
    ),
)
"""Command that builds the index of a run."""
GONE: Final = "gone"
"""The status of a run whose directory is no longer there."""
_MAX_BYTES: Final = 56 << 20
_INDEX_APART_BYTES: Final = 24 << 20
_AT_ONCE_BYTES: Final = 8 << 20
_LOOK_SECONDS: Final = 2.0
"""Minimum number of seconds between searches for new runs; longer if a search is slow."""
_PLANNED: Final = (
    "max_updates",
    "max_steps",
    "num_steps",
    "total_steps",
    "max_iters",
    "train_steps",
    "steps",
)


def state_of(run: Path) -> State:
    """Return the state of a run's files, which differs if anything changed. Costs a few stat
    calls.
    """
    layout = RunLayout(run)
    paths = [layout.manifest, layout.lock, layout.forensics, layout.checkpoints, layout.skip_list]
    paths += [layout.check, layout.audit]
    with contextlib.suppress(SondeError, OSError):  # not a directory
        paths += [file.path for file in layout.record_files()]
    found: State = {}
    for path in paths:
        with contextlib.suppress(OSError):
            seen = path.stat()
            found[path.name] = (seen.st_size, seen.st_mtime_ns)
    # only its existence counts, as it makes more data available; writes to it do not
    if layout.index.exists():
        found[layout.index.name] = (0, 0)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedRun:
    """One run in the list."""

    name: str
    """Its name in URLs."""
    summary: RunSummary
    """Its entry in the catalog."""
    step: int | None
    """Its last step; within its epoch, if it logs both."""
    epoch: int | None
    """Its last epoch, if it logs that."""
    planned: int | None
    """The planned number of steps, if its settings say so."""
    loss: float | None
    """Its last loss."""
    changed: float
    """Time of its last write, in seconds since the epoch."""
    steps_per_second: float = math.nan
    """Its recent speed; NaN if it is not known."""

    @property
    def seconds_run(self) -> float:
        """How long it has run, or ran, from its first start on; NaN if it is not known."""
        manifest = self.summary.manifest
        if manifest is None:
            return math.nan
        ends = {RUNNING: time.time()}.get(self.summary.status, manifest.ended or self.changed)
        return max(ends - manifest.created, 0.0)

    @property
    def seconds_left(self) -> float:
        """How long it will still run; NaN if it is not known."""
        if self.summary.status != RUNNING or self.planned is None or self.step is None:
            return math.nan
        if not self.steps_per_second > 0:
            return math.nan
        return max(self.planned - self.step, 0) / self.steps_per_second


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDetails:
    """What takes longer to find out about a run than a line of the list may take."""

    num_events: int
    """How many events it had."""
    cause: str
    """The cause of the event that went farthest wrong: of those with a sure cause, if any."""
    num_damaged: int
    """How many lines of its records cannot be read."""


class RunFolder:
    """A folder with runs in it, or a single run. The most recently viewed runs stay open.
    Thread-safe.
    """

    def __init__(self, root: Path, max_bytes: int = _MAX_BYTES) -> None:
        self.root = root.absolute()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._runs: dict[str, Path] = {}
        self._look_at = 0.0
        self._rows: dict[str, tuple[State, ListedRun]] = {}
        self._details: dict[str, tuple[State, RunDetails]] = {}
        self._extremes: dict[tuple[str, str], tuple[State, tuple[float, float] | None]] = {}
        self._opened: OrderedDict[Path, OpenRun] = OrderedDict()

    def runs(self) -> dict[str, Path]:
        """Return every run by name."""
        with self._lock:
            began = time.monotonic()
            if began >= self._look_at:
                self._runs = {_name_of(path, self.root): path for path in find_runs(self.root)}
                now = time.monotonic()
                self._look_at = now + max(_LOOK_SECONDS, 20 * (now - began))
            return self._runs

    def path(self, name: str) -> Path:
        """Return the directory of a run; raise RunNotFound if there is none."""
        found = self.runs().get(name)
        if found is None:
            raise RunNotFound(f"there is no run {name!r:.200} below {self.root}")
        return found

    def rows(self) -> list[ListedRun]:
        """Return all runs; unchanged ones are not read again."""
        return [self.row(name, path) for name, path in self.runs().items()]

    def row(self, name: str, path: Path) -> ListedRun:
        """Return the row of one run."""
        state = state_of(path)
        known, row = self._rows.get(name, (None, None))
        # A run that was killed looks unchanged, so one listed as running is read again.
        if row is None or known != state or row.summary.status == RUNNING:
            row = _row(name, path, state)
            self._rows[name] = (state, row)
        return row

    def details(self, name: str) -> RunDetails:
        """Return what a look into the run's records says; unchanged runs are not read again."""
        with self.open(name) as run:
            state = state_of(run.path)
            known = self._details.get(name)
            if known is None or known[0] != state:
                named = [mark for mark in run.marks() if mark.cause]
                causes = [_worded_cause(mark) for mark in worst_marks(named, 1)]
                found = RunDetails(
                    num_events=sum(mark.is_wrong for mark in run.marks()),
                    cause=causes[0] if causes else "",
                    num_damaged=sum(run.curves().num_bad.values()) + run.spikes().num_bad,
                )
                known = self._details[name] = (state, found)
            return known[1]

    def extremes(self, name: str, metric: str) -> tuple[float, float] | None:
        """Return the lowest and the highest value of a metric of a run; None if it has none."""
        with self.open(name) as run:
            state = state_of(run.path)
            known = self._extremes.get((name, metric))
            if known is None or known[0] != state:
                curve = run.find(metric)
                found = None
                if curve is not None and len(finite := curve.finite()):
                    found = (float(finite.values.min()), float(finite.values.max()))
                known = self._extremes[name, metric] = (state, found)
            return known[1]

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator["OpenRun"]:
        """Open a run for exclusive use by this thread until the end of the block; raise RunNotFound
        if there is none.
        """
        path = self.path(name)
        with self._lock:
            run = self._opened.setdefault(path, OpenRun(path))
            self._opened.move_to_end(path)
        with run.lock:
            yield run
        with self._lock:
            while len(self._opened) > 1 and self._num_bytes() > self._max_bytes:
                self._opened.popitem(last=False)

    def _num_bytes(self) -> int:
        return sum(run.num_bytes for run in self._opened.values())


def _name_of(path: Path, root: Path) -> str:
    """Return the path below the root as text that fits in a URL."""
    name = root.name if path == root else path.relative_to(root).as_posix()
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _row(name: str, path: Path, state: State) -> ListedRun:
    summary = summarise_run(path)
    last = {}
    with contextlib.suppress(OSError):  # a run that does not record updates
        last = next(newest_records(RunLayout(path).record_file(STEPS, 0), num_bytes=4096), {})
    numbers = step_numbers(last.get("step", summary.last_step)) or ()
    if isinstance(summary.last_step, list) and len(numbers) == 1:
        numbers = _last_iteration(path) or numbers
    settings = summary.manifest.settings if summary.manifest is not None else None
    is_running = summary.status == RUNNING
    return ListedRun(
        name=name,
        summary=summary,
        step=numbers[min(1, len(numbers) - 1)] if numbers else None,
        epoch=numbers[0] if isinstance(summary.last_step, list) and not last else None,
        planned=_planned(settings),
        loss=as_number(last.get("loss")) if "loss" in last else _last_loss(path, summary),
        changed=max((moment for _, moment in state.values()), default=0) / 1e9,
        steps_per_second=_speed(path, summary, numbers) if is_running else math.nan,
    )


def _last_iteration(path: Path) -> tuple[int, ...]:
    """Return the last step of the form [epoch, iteration]: the very last record may be one of a
    whole epoch.
    """
    with contextlib.suppress(OSError):
        for record in newest_records(RunLayout(path).record_file(LOG, 0), num_bytes=1 << 16):
            numbers = step_numbers(record.get("step"))
            if len(numbers) > 1:
                return numbers
    return ()


def _last_loss(path: Path, summary: RunSummary) -> float | None:
    """Return the last logged loss. The very last record may be an evaluation without one."""
    wanted = {spelling(name) for name in CURVES[LOSS]}

    def loss_in(data: object) -> float | None:
        if not isinstance(data, dict):
            return None
        values = [as_number(data[name]) for name in data if spelling(str(name)) in wanted]
        return next((value for value in values if value is not None), None)

    found = loss_in(summary.last_data)
    if found is not None or not summary.last_data:
        return found
    with contextlib.suppress(OSError):
        for record in newest_records(RunLayout(path).record_file(LOG, 0), num_bytes=1 << 16):
            found = loss_in(record.get("data"))
            if found is not None:
                return found
    return None


def _worded_cause(mark: Mark) -> str:
    """Return the cause of a mark, worded as a guess if the verdict is not sure."""
    if math.isnan(mark.confidence) or mark.confidence >= SURE:
        return mark.cause
    return f"Perhaps: {mark.cause[0].lower()}{mark.cause[1:]}"


def _speed(path: Path, summary: RunSummary, numbers: tuple[int, ...]) -> float:
    """Return the steps per second over the last log records, or else since the run's only start."""
    found: list[tuple[int, float]] = []
    with contextlib.suppress(OSError):
        for record in newest_records(RunLayout(path).record_file(LOG, 0), num_bytes=1 << 16):
            step = step_numbers(record.get("step"))
            moment = as_number(record.get("timestamp"))
            if moment and step and len(step) == 1:
                found.append((step[0], moment))
    if len(found) > 1 and found[0][1] > found[-1][1]:
        return (found[0][0] - found[-1][0]) / (found[0][1] - found[-1][1])
    manifest = summary.manifest
    if manifest is None or manifest.num_starts > 1 or len(numbers) != 1:
        return math.nan
    return numbers[0] / max(time.time() - manifest.created, 1e-9)


def _planned(settings: object) -> int | None:
    found = [settings.get(name) for name in _PLANNED] if isinstance(settings, dict) else []
    return next((value for value in found if type(value) is int and 0 < value < 2**53), None)


def status_of(run: Path) -> str:
    """Return the status of a run as it is now; `gone` if there is none any more."""
    try:
        return run_status(run, read_manifest(run))
    except RunNotFound:
        return GONE
    except (SondeError, OSError):
        return "damaged"


class OpenRun:
    """One open run: its series, its events and its verdicts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._curves: RunCurves | None = None
        self._indexer: threading.Thread | None = None
        self._spikes: SpikeLog | None = None
        self._marks: list[Mark] | None = None
        self._verdicts: list[Verdict] | None = None
        self._state: State = {}

    @property
    def num_bytes(self) -> int:
        """Approximate memory used, in bytes."""
        spikes = 6 * sum(size for name, (size, _) in self._state.items() if name.startswith(SPIKES))
        return spikes + (0 if self._curves is None else self._curves.num_bytes)

    @property
    def is_ready(self) -> bool:
        """True if the run is loaded, or small enough to be loaded immediately."""
        return self._curves is not None or _num_record_bytes(self.path) < _AT_ONCE_BYTES

    def curves(self) -> RunCurves:
        """Return its up-to-date series."""
        self._refresh()
        if self._curves is None:
            self._curves = RunCurves(self.path)
            if self._needs_indexing():
                self._start_indexing(self._curves)
        if self._indexer is not None:
            has_updates = len(self._curves.updates.steps) > 0
            if not self._indexer.is_alive() or not has_updates:
                # without records of updates, only the index has something to draw
                self._end_indexing(self._curves, self._indexer)
        return self._curves

    def _needs_indexing(self) -> bool:
        """Return whether indexing this run would take memory that a server would not give back."""
        has_index = RunLayout(self.path).index.exists()
        return not has_index and _num_record_bytes(self.path) > _INDEX_APART_BYTES

    def _start_indexing(self, curves: RunCurves) -> None:
        """Index the run in a process of its own; a thread waits for it."""
        curves.index_later = True
        self._indexer = threading.Thread(target=_index_apart, args=(self.path,), daemon=True)
        self._indexer.start()

    def _end_indexing(self, curves: RunCurves, indexer: threading.Thread) -> None:
        indexer.join()
        self._indexer = None
        curves.index_later = False

    def spikes(self) -> SpikeLog:
        """Return its up-to-date events."""
        self._refresh()
        if self._spikes is None:
            # Without records, reading would only complain about a damaged manifest, which the
            # caller already knows about.
            has_any = RunLayout(self.path).record_files(SPIKES)
            self._spikes = (
                read_spikes(self.path) if has_any else SpikeLog(spikes=(), datasets={}, num_bad=0)
            )
        return self._spikes

    def verdicts(self) -> list[Verdict]:
        """Return its up-to-date verdicts, ordered by step; damaged ones are left out."""
        self._refresh()
        if self._verdicts is None:
            self._verdicts = read_verdicts(self.path, [])
        return self._verdicts

    def marks(self) -> list[Mark]:
        """Return everything that happened, ordered by step."""
        self._refresh()
        if self._marks is None:
            repeated = self.curves().repeated
            self._marks = read_marks(self.path, self.spikes(), self.verdicts(), repeated)
        return self._marks

    def find(self, metric: str, rank: int | None = None) -> Curve | None:
        """Return a curve by its usual title or its name; None if the run has none."""
        curves = self.curves()
        if metric in CURVES:
            usual = curves.read_usual(metric, rank)
            if usual is not None:
                return usual
        return curves.read(metric, rank=rank) if curves.has(metric) else None

    def _refresh(self) -> None:
        state = state_of(self.path)
        if state != self._state:
            self._state = state
            self._spikes = None
            self._marks = None
            self._verdicts = None
            if self._curves is not None:
                self._curves.refresh()


def _num_record_bytes(run: Path) -> int:
    return sum(file.path.stat().st_size for file in RunLayout(run).record_files())


def _index_apart(run: Path) -> None:
    command = [*_INDEX, str(run.absolute())]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
