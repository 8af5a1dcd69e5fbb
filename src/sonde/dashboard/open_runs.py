"""Runs that were looked at, kept open within a budget of memory: a curve of a million steps is then cut and thinned in milliseconds.

A run that was never indexed and is large is indexed by a process of its own: that takes 130 MB, which a server would keep. What is known
without the index is there meanwhile.
"""

import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from sonde.records.layout import RunLayout
from sonde.report.run_curves import RunCurves
from sonde.spikes.spike_log import SpikeLog, read_spikes

SONDE: Final = (
    sys.executable,
    *("-c", "import sys; sys.path[:] = filter(None, sys.path); from sonde.cli.main import main; main()"),
)
"""This sonde as a process: not `-m`, which would import from whatever folder the server was started in."""
_MAX_BYTES: Final = 56 << 20
_INDEX_APART_BYTES: Final = 24 << 20
_AT_ONCE_BYTES: Final = 8 << 20


@final
class OpenRun:
    """One run: its series, and its events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._curves: RunCurves | None = None
        self._indexer: threading.Thread | None = None
        self._spikes: tuple[tuple[tuple[int, int], ...], SpikeLog] | None = None

    @property
    def num_bytes(self) -> int:
        """The memory that it holds, about."""
        spikes = 0 if self._spikes is None else 6 * sum(size for size, _ in self._spikes[0])
        return spikes + (0 if self._curves is None else self._curves.num_bytes)

    @property
    def is_ready(self) -> bool:
        """Is it read already, or so small that it is read at once?"""
        files = RunLayout(self.path).record_files()
        return self._curves is not None or sum(file.path.stat().st_size for file in files) < _AT_ONCE_BYTES

    def curves(self) -> RunCurves:
        """Its series as they are now."""
        if self._curves is None:
            self._curves = RunCurves(self.path)
            if _wants_index(self.path):
                self._curves.index_later = True
                self._indexer = threading.Thread(target=_index_apart, args=(self.path,), daemon=True)
                self._indexer.start()
        else:
            self._curves.refresh()
        if self._indexer is not None and (not self._indexer.is_alive() or not len(self._curves.updates.steps)):
            self._indexer.join()
            self._indexer = None
            self._curves.index_later = False
        return self._curves

    def spikes(self) -> SpikeLog:
        """Its events as they are now."""
        seen = [file.path.stat() for file in RunLayout(self.path).record_files("spikes")]
        state = tuple((one.st_size, one.st_mtime_ns) for one in seen)
        if self._spikes is None or self._spikes[0] != state:
            # Where there are no records, a damaged manifest would be complained about: who asks knows of it.
            found = read_spikes(self.path) if state else SpikeLog(spikes=(), datasets={}, num_bad=0)
            self._spikes = (state, found)
        return self._spikes[1]


@final
class OpenRuns:
    """The runs that were looked at last. Any thread may ask; one at a time looks into a run."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._runs: OrderedDict[Path, OpenRun] = OrderedDict()

    @contextmanager
    def open(self, path: Path) -> Iterator[OpenRun]:
        """A run, for this thread alone until the end of the block."""
        with self._lock:
            run = self._runs.setdefault(path, OpenRun(path))
            self._runs.move_to_end(path)
        with run.lock:
            yield run
        with self._lock:
            while len(self._runs) > 1 and sum(one.num_bytes for one in self._runs.values()) > self._max_bytes:
                self._runs.popitem(last=False)


def _wants_index(run: Path) -> bool:
    layout = RunLayout(run)
    sizes = [file.path.stat().st_size for file in layout.record_files()]
    return not layout.index.exists() and sum(sizes) > _INDEX_APART_BYTES


def _index_apart(run: Path) -> None:
    command = [*SONDE, "show", str(run.absolute()), "--json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
