"""Find the files that a reader is given: a path, a glob, a run directory, or several of them; and the rank of each.

Other loggers do not write their rank, but their users put it into the name: `dllogger_rank3.log`, `log.rank3.jsonl`.
"""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

from sonde.errors import RunError, RunNotFound
from sonde.records.layout import LOG, RunLayout

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a glob or a run directory, or a list of them."""

_RANK: Final = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)


def find_log_files(source: Source) -> list[Path]:
    """Return the log files that `source` refers to, without duplicates. Raises RunNotFound if there are none."""
    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    found: dict[Path, None] = {}
    for one in sources:
        found |= dict.fromkeys(_find_one(os.fspath(one)))
    return list(found)


def rank_in_name(path: Path) -> int:
    """Return the rank in a file's name, or 0 if there is none."""
    match = _RANK.search(path.name)
    return int(match[1]) if match else 0


def run_directory(source: Source) -> Path | None:
    """Return `source` if it is a run directory, otherwise None."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if RunLayout(path).manifest.is_file():
            return path
    return None


def _not_a_link(path: Path) -> Path:
    """Return `path`; raise if it is a link, as links inside a run could lead anywhere. User-named links are fine."""
    if path.is_symlink():
        raise RunError(f"{path} is a link, not a regular file", hint="name the log itself to read it")
    return path


def _find_one(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        files = [_not_a_link(file.path) for file in RunLayout(path).record_files(LOG)]
        files = files or sorted(one for ending in ("*.jsonl", "*.json") for one in path.glob(ending) if one.is_file())
    elif path.exists():
        files = [path]
    else:
        files = [file for match in sorted(glob.glob(name, recursive=True)) for file in _find_one(match)]
    if not files:
        raise RunNotFound(
            f"there is no log at {name}", hint="give a log file, a glob in quotes, or the directory of a run"
        )
    return files
