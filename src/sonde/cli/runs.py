"""`sonde runs DIR`: list the runs below a directory: how far each is, how well it does, what went
wrong in it.

Step and loss come from the end of the records, a fraction of a millisecond a run. Best and events
need all of them, so they are read for the newest 200 runs, and not for a run of many megabytes that
was never indexed.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import picked, print_beside, print_rows, screen, write_json
from sonde.dashboard.folder import ListedRun, RunDetails, RunFolder
from sonde.errors import SondeError
from sonde.records.catalog import RunSummary, find_runs, summarise_run
from sonde.report import wording
from sonde.report.run_curves import VALIDATION_LOSS

_STYLES: Final = {
    "running": "green",
    "failed": "red",
    "killed": "red",
    "damaged": "red",
    "unknown": "yellow",
}
_NUM_DETAILED: Final = 200
_COLUMNS: Final = ("run", "status", ">step", ">loss", ">best", ">events", ">age")
_NUMBERS_WIDTH: Final = 52
"""What the other columns take at most, in characters, for a run of up to a million steps."""
_NARROWEST: Final = 16


def runs(directory: Path = Path("runs"), /, *, json: bool = False) -> None:
    """List runs: status, step, loss, events and their cause.

    Parameters
    ----------
    directory
        The directory to search, up to four levels deep.
    json
        Print one JSON document instead of a table.
    """
    if json:
        summaries = [summarise_run(root) for root in find_runs(directory)]
        write_json([_as_json(run) for run in sorted(summaries, key=_created)])
    else:
        _show(screen(), directory)


def _created(run: RunSummary) -> float:
    return run.manifest.created if run.manifest else 0.0


def _show(console: Console, directory: Path) -> None:
    folder = RunFolder(directory)
    rows = sorted(folder.rows(), key=lambda row: _created(row.summary))
    if not rows:
        console.print(Text(f"no runs below {directory}"), soft_wrap=True)
        console.print("a Recorder in your loop or `sonde train` makes one; `sonde demo` shows one")
        return
    room = console.width - _NUMBERS_WIDTH if console.is_terminal else None
    titles = _titles(folder, directory, rows, room)
    num_brief = max(len(rows) - _NUM_DETAILED, 0)
    cells = []
    causes = []
    for place, (title, row) in enumerate(zip(titles, rows, strict=True)):
        best, details = (None, None) if place < num_brief else _look_into(folder, row)
        cells.append([title, *_cells(row, best, details)])
        causes.append("" if details is None else details.cause)
    _print(console, cells, causes, room)
    if num_brief:
        sentence = f"best, events and cause are those of the newest {_NUM_DETAILED} runs only"
        console.print(Text(sentence, style="dim"))


def _print(
    console: Console, cells: Sequence[list[object]], causes: Sequence[str], room: int | None
) -> None:
    """Print the table, with the causes as its last column or, if that is too wide, below it."""
    titles = [str(row[0]) for row in cells]
    widest = max(map(len, titles)) + max(map(len, causes))
    if room is None or widest <= room:
        rows = [[*row, cause] for row, cause in zip(cells, causes, strict=True)]
        print_rows(console, (*_COLUMNS, "cause"), rows)
        return
    print_rows(console, _COLUMNS, cells)
    console.print()
    width = max(len(title) for title, cause in zip(titles, causes, strict=True) if cause)
    for title, cause in zip(titles, causes, strict=True):
        if cause:
            print_beside(console, Text(f"{title:<{width}}  ", style="bold"), Text(cause))


def _titles(
    folder: RunFolder, directory: Path, rows: Sequence[ListedRun], room: int | None
) -> list[str]:
    """Return the paths of the runs, to be copied. If one does not fit, return their names below
    the directory, cut in the middle.
    """
    below = [row.summary.directory.relative_to(folder.root) for row in rows]
    paths = [str(directory / path) for path in below]
    if room is None or max(map(len, paths)) <= room:
        return paths
    return [wording.middle(row.name, max(room, _NARROWEST)) for row in rows]


def _look_into(folder: RunFolder, row: ListedRun) -> tuple[float | None, RunDetails | None]:
    """Return the best validation loss and the events of a run; None for what cannot be read, or
    not at once.
    """
    try:
        with folder.open(row.name) as run:
            if not run.is_ready:
                return None, None
            extremes = folder.extremes(row.name, VALIDATION_LOSS)
            return (None if extremes is None else extremes[0]), folder.details(row.name)
    except (SondeError, OSError):
        return None, None


def _cells(row: ListedRun, best: float | None, details: RunDetails | None) -> list[object]:
    manifest = row.summary.manifest
    return [
        Text(row.summary.status, style=_STYLES.get(row.summary.status, "")),
        wording.number(row.step),
        wording.number(row.loss),
        wording.number(best),
        wording.number(details.num_events) if details is not None else "",
        wording.age(time.time() - manifest.created) if manifest is not None else "",
    ]


def _as_json(run: RunSummary) -> dict[str, Any]:
    names = ("run_id", "created", "num_starts", "world_size")
    of_manifest = {name: getattr(run.manifest, name, None) for name in names}
    of_run = picked(run, "last_step", "last_data", "problem")
    return {"directory": str(run.directory), "status": run.status, **of_manifest, **of_run}
