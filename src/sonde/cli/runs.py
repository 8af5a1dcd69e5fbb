"""`sonde runs DIR`: list the runs below a directory."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import picked, print_rows, tell
from sonde.records.catalog import RunSummary, find_runs, summarise_run
from sonde.report import wording

_STYLES = {
    "running": "green",
    "failed": "red",
    "killed": "red",
    "damaged": "red",
    "unknown": "yellow",
}


def runs(directory: Path = Path("runs"), /, *, json: bool = False) -> None:
    """List the runs below a directory.

    Parameters
    ----------
    directory
        The directory to search, up to four levels deep.
    json
        Print one JSON document instead of a table.
    """
    found = [summarise_run(root) for root in find_runs(directory)]
    found.sort(key=lambda run: run.manifest.created if run.manifest else 0.0)

    def show(console: Console) -> None:
        if found:
            columns = ("run", "status", "created", ">starts", ">ranks", ">step", "loss")
            print_rows(console, columns, map(_cells, found))
        else:
            console.print(f"no runs below {directory}")

    tell([_as_json(run) for run in found], show, json=json)


def _cells(run: RunSummary) -> list[object]:
    manifest = run.manifest
    data = run.last_data
    of_manifest = (
        [wording.moment(manifest.created), manifest.num_starts, manifest.world_size]
        if manifest
        else [""] * 3
    )
    status = Text(run.status, style=_STYLES.get(run.status, ""))
    return [
        str(run.directory),
        status,
        *of_manifest,
        run.last_step,
        data.get("loss", data.get("train.loss")),
    ]


def _as_json(run: RunSummary) -> dict[str, Any]:
    names = ("run_id", "created", "num_starts", "world_size")
    of_manifest = {name: getattr(run.manifest, name, None) for name in names}
    of_run = picked(run, "last_step", "last_data", "problem")
    return {"directory": str(run.directory), "status": run.status, **of_manifest, **of_run}
