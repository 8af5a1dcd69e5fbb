"""`sonde checkpoints RUN`: list, verify, prune or average the checkpoints of a run. Only averaging
needs torch.
"""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from sonde.checkpoint.folder import CheckpointFolder, Keep
from sonde.cli.terminal import needs, print_rows, tell
from sonde.errors import DamagedFile, RunNotFound, SettingError
from sonde.records.layout import RunLayout
from sonde.records.manifest import checkpoint_place, read_manifest
from sonde.report import wording


def checkpoints(
    run: Path,
    /,
    *,
    checkpoints: str | None = None,
    verify: bool = False,
    prune: int | None = None,
    average: int | None = None,
    json: bool = False,
) -> int:
    """List, verify, prune or average checkpoints.

    Parameters
    ----------
    run
        A run directory, or a folder of checkpoints.
    checkpoints
        Folder or URL of the checkpoints, if they are not where the run recorded them.
    verify
        Check every byte of each checkpoint. Exits 1 if one is damaged.
    prune
        Delete all but this many of the newest checkpoints.
    average
        Average the weights of this many of the newest checkpoints and save the result beside them.
    json
        Print one JSON document instead of a table.
    """
    folder = _folder_of(run, checkpoints, to_change=prune is not None or average is not None)
    removed: list[int] = []
    if prune is not None:
        if prune < 1:
            raise SettingError(f"--prune must keep 1 or more, not {prune}")
        removed = folder.prune(Keep(newest=prune))
    averaged = _average(folder, average) if average is not None else None
    rows = [_row(folder, step, verify=verify) for step in folder.steps()]

    def show(console: Console) -> None:
        if rows:
            total = wording.size(sum(row["num_bytes"] for row in rows))
            count = wording.counted(len(rows), "checkpoint")
            console.print(Text(f"{count}, {total}; the newest after step {rows[-1]['step']:,}"))
            cells = [_cells(row, verify=verify) for row in rows]
            kept = [place for place in range(4) if any(str(row[place] or "") for row in cells)]
            columns = [(">step", ">size", ">loss", "state")[place] for place in kept]
            print_rows(console, columns, ([row[place] for place in kept] for row in cells))
        else:
            console.print(Text(f"no checkpoints in {folder.directory}"))
        if removed:
            console.print(f"removed: {', '.join(map(str, removed))}")
        if averaged:
            console.print(Text(f"averaged into {averaged}"))

    document = {
        "checkpoints": rows,
        "removed": removed,
        "average": str(averaged) if averaged else None,
    }
    tell(document, show, json=json)
    return 1 if any(row["problems"] for row in rows) else 0


def _folder_of(run: Path, given: str | None, *, to_change: bool) -> CheckpointFolder:
    """Return the checkpoints of a run, or a folder of checkpoints by itself."""
    layout = RunLayout(run)
    if layout.manifest.is_file():
        place = checkpoint_place(run, given, to_change=to_change)
        return CheckpointFolder(place, run_id=read_manifest(run).run_id)
    folder = CheckpointFolder(run)
    if not folder.steps():
        hint = "give the directory of a run, or a folder of checkpoints"
        raise RunNotFound(f"there are no checkpoints at {run}", hint=hint)
    return folder


def _average(folder: CheckpointFolder, number: int) -> Path | str:
    steps = folder.steps()
    if not 1 <= number <= len(steps):
        raise SettingError(
            f"--average {number} needs as many checkpoints, and there are {len(steps)}"
        )
    needs("sonde checkpoints --average", "torch")
    from sonde.checkpoint.weights import save_average

    return save_average(folder, steps[-number:])


def _row(folder: CheckpointFolder, step: int, *, verify: bool) -> dict[str, Any]:
    """Return what is known about one checkpoint. Without `verify`, files are not read in full."""
    row: dict[str, Any] = {
        "step": step,
        "path": str(folder.at(step).where),
        "num_bytes": folder.num_bytes(step),
    }
    problems = folder.problems(step) if verify else []
    try:
        document = folder.document(step)
        row |= {name: document.get(name) for name in ("run_id", "metrics", "distrusted")}
    except DamagedFile as error:
        problems = problems or [
            f"{error.message} ({error.cause})" if error.cause else error.message
        ]
    return row | {"problems": problems}


def _cells(row: dict[str, Any], *, verify: bool) -> tuple[object, ...]:
    loss = (row.get("metrics") or {}).get("loss")
    if row["problems"]:
        state = Text("; ".join(row["problems"]), style="red")
    elif row.get("distrusted"):
        state = Text(str(row["distrusted"]), style="yellow")
    else:
        state = Text("verified" if verify else "")
    return row["step"], wording.size(row["num_bytes"]), wording.number(loss), state
