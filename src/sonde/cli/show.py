"""`sonde show RUN`: what one run holds: its manifest, its record files, its metrics."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import duration_text, plain_table, screen, size_text, time_text, write_json
from sonde.records.catalog import run_status
from sonde.records.layout import RunLayout
from sonde.records.manifest import Manifest, read_manifest


def show(run: Path, /, *, json: bool = False) -> None:
    """Show what one run holds.

    Parameters
    ----------
    run
        The run directory.
    json
        Print one JSON document instead of tables.
    """
    manifest = read_manifest(run)
    status = run_status(run, manifest)
    files = _record_files(run)
    if json:
        write_json({"manifest": manifest, "status": status, "files": files})
        return
    console = screen()
    _show_manifest(console, run, manifest, status)
    _show_files(console, files)


def _record_files(run: Path) -> list[dict[str, Any]]:
    return [
        {"name": file.path.name, "kind": file.kind, "rank": file.rank, "num_bytes": file.path.stat().st_size}
        for file in RunLayout(run).record_files()
    ]


def _show_manifest(console: Console, run: Path, manifest: Manifest, status: str) -> None:
    table = plain_table("", "")
    table.show_header = False
    spent = (manifest.ended or time.time()) - manifest.created
    rows = {
        "run": str(run),
        "id": manifest.run_id,
        "status": f"{status}: {manifest.reason}" if manifest.reason else status,
        "created": f"{time_text(manifest.created)}, {duration_text(spent)} before it ended"
        if manifest.ended
        else time_text(manifest.created),
        "starts": str(manifest.num_starts),
        "ranks": str(manifest.world_size),
        "host": str(manifest.host.get("name", "")),
        "command": " ".join(manifest.command),
        "git": _git_text(manifest.git),
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "seeds": ", ".join(f"{name}={seed}" for name, seed in manifest.seeds.items()),
        "settings": _settings_text(manifest.settings),
        "data": ", ".join(f"{name} {digest}" for name, digest in manifest.data.items()),
    }
    for label, text in rows.items():
        if text:
            table.add_row(Text(label, style="bold"), Text(text))
    console.print(table)


def _show_files(console: Console, files: list[dict[str, Any]]) -> None:
    if not files:
        console.print("\nno records yet")
        return
    table = plain_table("records", "rank", "size", right=("rank", "size"))
    for file in files:
        table.add_row(file["kind"], str(file["rank"]), size_text(file["num_bytes"]))
    console.print()
    console.print(table)


def _git_text(git: dict[str, Any] | None) -> str:
    if not git:
        return ""
    changed = git.get("num_changed_files")
    return f"{str(git.get('commit', ''))[:12]} on {git.get('branch')}" + (
        f", {changed} files changed" if changed else ""
    )


def _settings_text(settings: object) -> str:
    if isinstance(settings, dict):
        return ", ".join(f"{name}={value}" for name, value in settings.items())
    return "" if settings is None else str(settings)
