"""The runs below a folder, named by relative path as in URLs. A name is looked up, never joined to a path.

Viewed runs stay open within a memory budget, so that a curve of a million steps is cut and thinned in milliseconds. A
large run without an index is indexed in a separate process, because indexing takes 130 MB that a server would not give
back. Until then, everything that does not need the index is shown.
"""

import contextlib
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
from sonde.records.catalog import RunSummary, find_runs, summarise_run
from sonde.records.layout import SPIKES, STEPS, RunLayout
from sonde.records.manifest import RUNNING
from sonde.records.reader import newest_records
from sonde.records.values import as_number, step_numbers
from sonde.report.run_curves import CURVES, LOSS, RunCurves
from sonde.spikes.spike_log import SpikeLog, read_spikes

State: TypeAlias = dict[str, tuple[int, int]]
"""Size and modification time of everything in a run that may change, by name."""

SONDE: Final = (
    sys.executable,
    *("-c", "import sys; sys.path[:] = filter(None, sys.path); from sonde.cli.main import main; main()"),
)
"""Command that runs this sonde as a process. Not `-m`, which would import from the server's working directory."""
_MAX_BYTES: Final = 56 << 20
_INDEX_APART_BYTES: Final = 24 << 20
_AT_ONCE_BYTES: Final = 8 << 20
_LOOK_SECONDS: Final = 2.0
"""Minimum number of seconds between searches for new runs; longer if a search is slow."""
_PLANNED: Final = ("max_updates", "max_steps", "num_steps", "total_steps", "max_iters", "train_steps", "steps")


def state_of(run: Path) -> State:
    """Return the state of a run's files, which differs if anything changed. Costs a few stat calls."""
    layout = RunLayout(run)
    paths = [layout.manifest, layout.lock, layout.forensics, layout.checkpoints, layout.skip_list]
    with contextlib.suppress(SondeError, OSError):  # not a directory
        paths += [file.path for file in layout.record_files()]
    found: State = {}
    for path in paths:
        with contextlib.suppress(OSError):
            seen = path.stat()
            found[path.name] = (seen.st_size, seen.st_mtime_ns)
    if layout.index.exists():  # only its existence counts, as it makes more data available; writes to it do not
        found[layout.index.name] = (0, 0)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One run in the list."""

    name: str
    """Its name in URLs."""
    summary: RunSummary
    """Its entry in the catalog."""
    step: int | None
    """Its last step."""
    planned: int | None
    """The planned number of steps, if its settings say so."""
    loss: float | None
    """Its last loss."""
    changed: float
    """Time of its last write, in seconds since the epoch."""


class RunFolder:
    """A folder with runs in it, or a single run. The most recently viewed runs stay open. Thread-safe."""

    def __init__(self, root: Path, max_bytes: int = _MAX_BYTES) -> None:
        self.root = root.absolute()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._runs: dict[str, Path] = {}
        self._look_at = 0.0
        self._rows: dict[str, tuple[State, Row]] = {}
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

    def rows(self) -> list[Row]:
        """Return all runs; unchanged ones are not read again."""
        return [self.row(name, path) for name, path in self.runs().items()]

    def row(self, name: str, path: Path) -> Row:
        """Return the row of one run."""
        state = state_of(path)
        known, row = self._rows.get(name, (None, None))
        # A run that was killed looks unchanged, so one listed as running is read again.
        if row is None or known != state or row.summary.status == RUNNING:
            row = _row(name, path, state)
            self._rows[name] = (state, row)
        return row

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator["OpenRun"]:
        """Open a run for exclusive use by this thread until the end of the block; raise RunNotFound if there is none."""
        path = self.path(name)
        with self._lock:
            run = self._opened.setdefault(path, OpenRun(path))
            self._opened.move_to_end(path)
        with run.lock:
            yield run
        with self._lock:
            while len(self._opened) > 1 and sum(one.num_bytes for one in self._opened.values()) > self._max_bytes:
                self._opened.popitem(last=False)


def _name_of(path: Path, root: Path) -> str:
    """Return the path below the root as text that fits in a URL."""
    name = root.name if path == root else path.relative_to(root).as_posix()
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _row(name: str, path: Path, state: State) -> Row:
    summary, last = summarise_run(path), {}
    with contextlib.suppress(OSError):  # a run that does not record updates
        last = next(newest_records(RunLayout(path).record_file(STEPS, 0), num_bytes=4096), {})
    numbers = step_numbers(last.get("step", summary.last_step)) or ()
    losses = [as_number(last.get("loss")), *(as_number(summary.last_data.get(one)) for one in CURVES[LOSS])]
    settings = summary.manifest.settings if summary.manifest is not None else None
    return Row(
        name=name,
        summary=summary,
        step=numbers[min(1, len(numbers) - 1)] if numbers else None,
        planned=_planned(settings),
        loss=next((loss for loss in losses if loss is not None), None),
        changed=max((moment for _, moment in state.values()), default=0) / 1e9,
    )


def _planned(settings: object) -> int | None:
    found = [settings.get(name) for name in _PLANNED] if isinstance(settings, dict) else []
    return next((value for value in found if type(value) is int and 0 < value < 2**53), None)


class OpenRun:
    """One open run: its series and its events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._curves: RunCurves | None = None
        self._indexer: threading.Thread | None = None
        self._spikes: SpikeLog | None = None
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
            if not RunLayout(self.path).index.exists() and _num_record_bytes(self.path) > _INDEX_APART_BYTES:
                self._curves.index_later = True
                self._indexer = threading.Thread(target=_index_apart, args=(self.path,), daemon=True)
                self._indexer.start()
        if self._indexer is not None and (not self._indexer.is_alive() or not len(self._curves.updates.steps)):
            self._indexer.join()
            self._indexer = None
            self._curves.index_later = False
        return self._curves

    def spikes(self) -> SpikeLog:
        """Return its up-to-date events."""
        self._refresh()
        if self._spikes is None:
            # Without records, reading would only complain about a damaged manifest, which the caller already knows
            # about.
            has_any = RunLayout(self.path).record_files(SPIKES)
            self._spikes = read_spikes(self.path) if has_any else SpikeLog(spikes=(), datasets={}, num_bad=0)
        return self._spikes

    def _refresh(self) -> None:
        state = state_of(self.path)
        if state != self._state:
            self._state, self._spikes = state, None
            if self._curves is not None:
                self._curves.refresh()


def _num_record_bytes(run: Path) -> int:
    return sum(file.path.stat().st_size for file in RunLayout(run).record_files())


def _index_apart(run: Path) -> None:
    command = [*SONDE, "show", str(run.absolute()), "--json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
