"""The runs below a folder, by the names that addresses use: their paths below it. A name is looked up, never joined to a path."""

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, final

from sonde.errors import RunNotFound, SondeError
from sonde.log.steps import step_numbers
from sonde.records.catalog import DAMAGED, RunSummary, find_runs, run_status, summarise_run
from sonde.records.layout import STEPS, RunLayout
from sonde.records.manifest import RUNNING
from sonde.records.reader import read_last_records
from sonde.records.values import as_number
from sonde.report.facts import LOSS

State: TypeAlias = dict[str, tuple[int, int]]
"""Size and time of everything in a run that may change, by name."""

_LOOK_SECONDS: Final = 2.0
"""So often the folder is searched for new runs at most; more seldom where that takes long."""
_PLANNED: Final = ("max_updates", "max_steps", "num_steps", "total_steps", "max_iters", "train_steps", "steps")


def state_of(run: Path) -> State:
    """What would differ if anything in the run had changed. Some stats."""
    layout = RunLayout(run)
    paths = [layout.manifest, layout.lock, layout.forensics, layout.checkpoints, layout.skip_list]
    with contextlib.suppress(SondeError, OSError):  # what stands there is no folder
        paths += [file.path for file in layout.record_files()]
    found: State = {}
    for path in paths:
        with contextlib.suppress(OSError):
            seen = path.stat()
            found[path.name] = (seen.st_size, seen.st_mtime_ns)
    if layout.index.exists():  # that it is there says that more is known; what is written into it does not
        found[layout.index.name] = (0, 0)
    return found


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One run in the list."""

    name: str
    """What addresses call it."""
    summary: RunSummary
    """What the catalog says of it."""
    step: int | None
    """Its last step."""
    planned: int | None
    """The steps it is to make, if its settings say so."""
    loss: float | None
    """Its last loss."""
    changed: float
    """When it last wrote something, in seconds since the epoch."""


@final
class RunFolder:
    """A folder with runs in it, or a run itself. Any thread may ask."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._lock = threading.Lock()
        self._runs: dict[str, Path] = {}
        self._look_at = 0.0
        self._rows: dict[str, tuple[State, Row]] = {}

    def runs(self) -> dict[str, Path]:
        """Every run by its name."""
        with self._lock:
            began = time.monotonic()
            if began >= self._look_at:
                self._runs = {_name_of(path, self.root): path for path in find_runs(self.root)}
                now = time.monotonic()
                self._look_at = now + max(_LOOK_SECONDS, 20 * (now - began))
            return self._runs

    def path(self, name: str) -> Path:
        """The directory of a run; raises RunNotFound."""
        found = self.runs().get(name)
        if found is None:
            raise RunNotFound(f"there is no run {name!r:.200} below {self.root}")
        return found

    def rows(self) -> list[Row]:
        """All runs; those that have not changed are not read again."""
        return [self.row(name, path) for name, path in self.runs().items()]

    def row(self, name: str, path: Path) -> Row:
        """One run."""
        state = state_of(path)
        known, row = self._rows.get(name, (None, None))
        if row is None or known != state or _was_killed(row):
            row = _row(name, path, state)
            self._rows[name] = (state, row)
        return row


def _was_killed(row: Row) -> bool:
    """Is it running no more? That leaves no trace in its files."""
    summary = row.summary
    if summary.manifest is None or summary.manifest.status != RUNNING:
        return False
    return run_status(summary.directory, summary.manifest) != summary.status


def _name_of(path: Path, root: Path) -> str:
    """The path below the root, as text that an address can hold."""
    name = root.name if path == root else path.relative_to(root).as_posix()
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _row(name: str, path: Path, state: State) -> Row:
    try:
        summary = summarise_run(path)
    except (SondeError, OSError) as error:  # one bad run among many is no reason to show none
        summary = RunSummary(
            directory=path, status=DAMAGED, manifest=None, last_step=None, last_data={}, problem=str(error)
        )
    last: dict[str, Any] = {}
    try:
        records = read_last_records(RunLayout(path).record_file(STEPS, 0), num_bytes=4096)
        last = records[-1] if records else {}
    except OSError:
        pass  # a run that records no updates
    numbers = step_numbers(last.get("step", summary.last_step)) or ()
    losses = [as_number(last.get("loss")), *(as_number(summary.last_data.get(one)) for one in LOSS)]
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
    if not isinstance(settings, dict):
        return None
    inner = [one for one in settings.values() if isinstance(one, dict)]
    for place in [settings, *inner]:
        for name in _PLANNED:
            value = place.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53:
                return value
    return None
