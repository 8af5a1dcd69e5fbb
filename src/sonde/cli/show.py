"""`sonde show RUN`: show the manifest, record files and metrics of a run."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import print_indented, print_rows, tell
from sonde.heal.history import told
from sonde.records.catalog import run_status
from sonde.records.columns import Series
from sonde.records.index import RunIndex
from sonde.records.layout import RecordFileName, RunLayout
from sonde.records.manifest import Manifest, read_manifest
from sonde.records.reader import damage_text
from sonde.report import wording


def show(run: Path, /, *, json: bool = False) -> None:
    """Show the manifest, record files and metrics of a run.

    Parameters
    ----------
    run
        The run directory.
    json
        Print one JSON document instead of tables.
    """
    manifest = read_manifest(run)
    status = run_status(run, manifest)
    layout = RunLayout(run)
    with RunIndex(layout) as index:
        index.refresh()
        files = [_describe_file(index, file) for file in layout.record_files()]
        metrics = [_describe_metric(index.series(name), name) for name in index.metrics()]
    healing = told(run)

    def show(console: Console) -> None:
        _show_manifest(console, run, manifest, status)
        for first, *rest in healing:
            console.print()
            console.print(Text(first, style="bold"))
            for sentence in rest:
                print_indented(console, sentence, 2)
        _show_files(console, files)
        if shown := [metric for metric in metrics if metric["num_values"]]:
            console.print()
            columns = ("metric", ">values", ">not finite", ">first", ">last", ">min", ">max")
            print_rows(console, columns, (metric.values() for metric in shown))

    document = {"manifest": manifest, "status": status, "files": files, "metrics": metrics, "healing": healing}
    tell(document, show, json=json)


def _describe_file(index: RunIndex, file: RecordFileName) -> dict[str, Any]:
    known, size = {"name": file.path.name, "kind": file.kind, "rank": file.rank}, file.path.stat().st_size
    num, num_bad = index.num_records(file.kind, rank=file.rank), index.num_bad(file.kind, rank=file.rank)
    return {**known, "num_records": num, "num_bad": num_bad, "num_bytes": size}


def _describe_metric(series: Series, name: str) -> dict[str, Any]:
    """Summarise rank 0's values of one metric. Minimum and maximum are over the finite values."""
    values = series.values
    finite = values[np.isfinite(values)]
    first, last = values[[0, -1]].tolist() if len(values) else (None, None)
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
    counts = {"num_values": len(values), "num_nonfinite": len(values) - len(finite)}
    return {"name": name, **counts, "first": first, "last": last, "min": low, "max": high}


def _show_manifest(console: Console, run: Path, manifest: Manifest, status: str) -> None:
    spent = (manifest.ended or time.time()) - manifest.created
    rows = {
        "run": str(run),
        "id": manifest.run_id,
        "status": f"{status}: {manifest.reason}" if manifest.reason else status,
        "created": f"{wording.moment(manifest.created)}, {'ended' if manifest.ended else 'that is'} {wording.duration(spent)} {'later' if manifest.ended else 'ago'}",
        "starts": str(manifest.num_starts),
        "ranks": str(manifest.world_size),
        "host": str(manifest.host.get("name", "")),
        "command": " ".join(map(str, manifest.command)),
        "checkpoints": manifest.checkpoints or "",
        **{name: _named(getattr(manifest, name)) for name in ("git", "versions", "seeds", "settings", "data")},
    }
    print_rows(console, ("", ""), ((Text(label, style="bold"), text) for label, text in rows.items() if text))


def _show_files(console: Console, files: list[dict[str, Any]]) -> None:
    if not files:
        console.print("\nno records yet")
        return
    console.print()
    columns = ("records", ">rank", ">number", ">size", "")
    print_rows(console, columns, map(_file_cells, files))


def _file_cells(one: dict[str, Any]) -> tuple[object, ...]:
    damage = Text(damage_text(one["num_bad"]), style="red")
    return one["kind"], one["rank"], f"{one['num_records']:,}", wording.size(one["num_bytes"]), damage


def _named(values: object) -> str:
    return ", ".join(f"{name}={text}" for name, text in wording.setting_rows(values))
