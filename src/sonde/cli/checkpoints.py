"""`sonde checkpoints RUN`: the checkpoints of a run: list, verify, prune, average. Only averaging needs torch."""

from pathlib import Path
from typing import Any

from rich.text import Text

from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.retention import Keep
from sonde.cli.terminal import number_text, plain_table, screen, write_json
from sonde.errors import DamagedFile, MissingDependency, RunNotFound, SettingError, SondeError
from sonde.records.layout import RunLayout
from sonde.records.manifest import checkpoint_place, checkpoints_at, read_manifest
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
    """List the checkpoints of a run.

    Parameters
    ----------
    run
        A run directory, or a folder of checkpoints.
    checkpoints
        Where the run's checkpoints are now, if not where the run says: a folder or a URL.
    verify
        Check every byte of each; exit 1 when one is damaged.
    prune
        Keep only this many of the newest.
    average
        Save the mean of the weights of this many of the newest beside them.
    json
        Print one JSON document instead of a table.
    """
    with checkpoints_at(checkpoints):
        folder = _folder_of(run, to_change=prune is not None or average is not None)
    removed: list[int] = []
    if prune is not None:
        if prune < 1:
            raise SettingError(f"--prune must keep 1 or more, not {prune}")
        removed = folder.prune(Keep(newest=prune))
    averaged = _average(folder, average) if average is not None else None
    rows = [_row(folder, step, verify=verify) for step in folder.steps()]
    if json:
        write_json({"checkpoints": rows, "removed": removed, "average": str(averaged) if averaged else None})
    else:
        _show(folder, rows, removed, averaged, verify=verify)
    return 1 if any(row["problems"] for row in rows) else 0


def _folder_of(run: Path, *, to_change: bool) -> CheckpointFolder:
    layout = RunLayout(run)
    if layout.manifest.is_file():
        return CheckpointFolder(checkpoint_place(run, to_change=to_change), run_id=read_manifest(run).run_id)
    folder = CheckpointFolder(run)
    if not folder.steps():
        raise RunNotFound(
            f"there are no checkpoints at {run}", hint="give the directory of a run, or a folder of checkpoints"
        )
    return folder


def _average(folder: CheckpointFolder, number: int) -> Path | str:
    steps = folder.steps()
    if not 1 <= number <= len(steps):
        raise SettingError(f"--average {number} needs as many checkpoints, and there are {len(steps)}")
    try:
        from sonde.checkpoint.weights import save_average
    except ImportError:
        raise MissingDependency("torch", needed_for="sonde checkpoints --average", extra="train") from None
    return save_average(folder, steps[-number:])


def _row(folder: CheckpointFolder, step: int, *, verify: bool) -> dict[str, Any]:
    """What is known of one checkpoint; without `verify` only what is plain to see."""
    row: dict[str, Any] = {"step": step, "path": str(folder.at(step).where), "num_bytes": folder.num_bytes(step)}
    problems = folder.problems(step) if verify else []
    try:
        document = folder.document(step)
        row |= {name: document.get(name) for name in ("run_id", "metrics", "distrusted")}
    except DamagedFile as error:
        problems = problems or [_in_a_line(error)]
    return row | {"problems": problems}


def _in_a_line(error: SondeError) -> str:
    return f"{error.message} ({error.cause})" if error.cause else error.message


def _show(
    folder: CheckpointFolder,
    rows: list[dict[str, Any]],
    removed: list[int],
    averaged: Path | str | None,
    *,
    verify: bool,
) -> None:
    console = screen()
    table = plain_table("step", "size", "loss", "state", right=("step", "size", "loss"))
    for row in rows:
        metrics = row.get("metrics") or {}
        state = "; ".join(row["problems"]) or row.get("distrusted") or ("verified" if verify else "")
        table.add_row(
            str(row["step"]),
            wording.size(row["num_bytes"]),
            number_text(metrics.get("loss")),
            Text(str(state), style="red" if row["problems"] else "yellow" if row.get("distrusted") else ""),
        )
    if rows:
        console.print(table)
    else:
        console.print(Text(f"no checkpoints in {folder.directory}"))
    if removed:
        console.print(f"removed: {', '.join(map(str, removed))}")
    if averaged:
        console.print(Text(f"averaged into {averaged}"))
