"""`sonde show RUN`: show the manifest, record files and metrics of a run. `sonde report RUN -o report.html`: write everything about it to one file that can be sent on."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import print_indented, print_rows, tell
from sonde.errors import SettingError
from sonde.heal.history import told
from sonde.records.catalog import run_status
from sonde.records.columns import Series
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
from sonde.records.manifest import Manifest, read_manifest
from sonde.records.reader import damage_text
from sonde.records.storage import write_anywhere
from sonde.report import markdown, wording
from sonde.report.facts import gather
from sonde.report.html import page


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
    files: list[dict[str, Any]] = []
    with RunIndex(layout) as index:
        index.refresh()
        for file in layout.record_files():
            known, size = {"name": file.path.name, "kind": file.kind, "rank": file.rank}, file.path.stat().st_size
            num, num_bad = index.num_records(file.kind, rank=file.rank), index.num_bad(file.kind, rank=file.rank)
            files.append({**known, "num_records": num, "num_bad": num_bad, "num_bytes": size})
        metrics = [_describe_metric(index.series(name), name) for name in index.metrics()]
    healing = told(run)

    def show(console: Console) -> None:
        _show_manifest(console, run, manifest, status)
        for first, *rest in healing:
            console.print(Text(f"\n{first}", style="bold"))
            for sentence in rest:
                print_indented(console, Text(sentence), 2)
        console.print("" if files else "\nno records yet")
        if files:
            print_rows(console, ("records", ">rank", ">number", ">size", ""), map(_file_cells, files))
        if shown := [metric for metric in metrics if metric["num_values"]]:
            console.print()
            columns = ("metric", ">values", ">not finite", ">first", ">last", ">min", ">max")
            print_rows(console, columns, (metric.values() for metric in shown))

    document = {"manifest": manifest, "status": status, "files": files, "metrics": metrics, "healing": healing}
    tell(document, show, json=json)


def _describe_metric(series: Series, name: str) -> dict[str, Any]:
    """Summarise rank 0's values of one metric. Minimum and maximum are over the finite values."""
    values = series.values
    finite = values[np.isfinite(values)]
    first, last = values[[0, -1]].tolist() if len(values) else (None, None)
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
    counts = {"num_values": len(values), "num_nonfinite": len(values) - len(finite)}
    return {"name": name, **counts, "first": first, "last": last, "min": low, "max": high}


def _show_manifest(console: Console, run: Path, manifest: Manifest, status: str) -> None:
    state = f"{status}: {manifest.reason}" if manifest.reason else status
    rows = {"run": str(run), "status": state, **wording.about_run(manifest), "checkpoints": manifest.checkpoints}
    for name in ("git", "versions", "seeds", "settings", "data"):
        values = wording.setting_rows(getattr(manifest, name))
        rows[name] = ", ".join(f"{key}={text}" for key, text in values)
    print_rows(console, ("", ""), ((Text(label, style="bold"), text) for label, text in rows.items() if text))


def _file_cells(one: dict[str, Any]) -> tuple[object, ...]:
    damage = Text(damage_text(one["num_bad"]), style="red")
    return one["kind"], one["rank"], f"{one['num_records']:,}", wording.size(one["num_bytes"]), damage


def report(
    run: Path,
    /,
    *,
    out: Annotated[str | None, Parameter(name=("--out", "-o"))] = None,
    format: Literal["html", "md"] | None = None,  # noqa: A002  the name of the flag
) -> None:
    """Write a report of a run as one self-contained file.

    Parameters
    ----------
    run
        The run directory.
    out
        The file or URL (s3://…) to write (default: `report.html` or `report.md`).
    format
        An HTML page or Markdown (default: from the file name).
    """
    if format is None:
        format = "md" if out is not None and out.endswith((".md", ".markdown")) else "html"  # noqa: A001  as the flag is called
    path = out if out is not None else f"report.{format}"
    if Path(path).is_dir():
        raise SettingError(f"{path} is a directory", hint=f"name the file: -o {Path(path, f'report.{format}')}")
    facts = gather(run)
    text = markdown.render_markdown(facts) if format == "md" else page.render_html(facts)
    payload = text.encode("utf-8", "backslashreplace")
    write_anywhere(path, payload)
    found = {"verdict": len(facts.verdicts), "event": len(facts.events)}
    told = ", ".join(f"{num} {what}{'' if num == 1 else 's'}" for what, num in found.items())
    print(f"{path}: {wording.size(len(payload))}; {told}")
    for problem in facts.problems:
        print(f"  {problem}")
