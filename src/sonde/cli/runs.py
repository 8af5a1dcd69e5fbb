"""`sonde runs DIR`: a table of the runs below a directory."""

from pathlib import Path
from typing import Any

from rich.text import Text

from sonde.cli.terminal import number_text, plain_table, print_table, screen, time_text, write_json
from sonde.records.catalog import RunSummary, find_runs, summarise_run

_STYLES = {
    "running": "green",
    "finished": "",
    "stopped": "",
    "failed": "red",
    "killed": "red",
    "unknown": "yellow",
    "damaged": "red",
}


def runs(directory: Path = Path("runs"), /, *, json: bool = False) -> None:
    """List the runs below a directory.

    Parameters
    ----------
    directory
        Where to look, four levels deep.
    json
        Print one JSON document instead of a table.
    """
    found = [summarise_run(root) for root in find_runs(directory)]
    found.sort(key=lambda run: run.manifest.created if run.manifest else 0.0)
    if json:
        write_json([_as_json(run) for run in found])
        return
    console = screen()
    if not found:
        console.print(f"no runs below {directory}")
        return
    table = plain_table(
        "run", "status", "created", "starts", "ranks", "step", "loss", right=("starts", "ranks", "step")
    )
    for run in found:
        manifest = run.manifest
        table.add_row(
            str(run.directory),
            Text(run.status, style=_STYLES.get(run.status, "")),
            time_text(manifest.created) if manifest else "",
            str(manifest.num_starts) if manifest else "",
            str(manifest.world_size) if manifest else "",
            number_text(run.last_step),
            number_text(run.last_data.get("loss", run.last_data.get("train.loss"))),
        )
    print_table(console, table)


def _as_json(run: RunSummary) -> dict[str, Any]:
    manifest = run.manifest
    return {
        "directory": str(run.directory),
        "status": run.status,
        "run_id": manifest.run_id if manifest else None,
        "created": manifest.created if manifest else None,
        "num_starts": manifest.num_starts if manifest else None,
        "world_size": manifest.world_size if manifest else None,
        "last_step": run.last_step,
        "last_data": run.last_data,
        "problem": run.problem,
    }
