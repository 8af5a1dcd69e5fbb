"""MLflow's database, `mlflow.db`: where MLflow keeps its runs unless told otherwise.

    is_database(head)              whether a file that begins like this is a database
    database_sources(path)         every run in it, oldest first

It is opened for reading only. A database of something else has no runs.
"""

import contextlib
import math
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sonde.curves.points import Point, Source, usual_name, usual_time

FORMAT: Final = "MLflow's database"
_BEGINNING: Final = b"SQLite format 3\x00"
_MAX_RUNS: Final = 1000
_RUNS: Final = (
    "SELECT run_uuid, name FROM runs WHERE run_uuid IN (SELECT run_uuid FROM metrics)"
    " ORDER BY start_time LIMIT ?"
)
_METRICS: Final = (
    "SELECT key, value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ?"
    " ORDER BY timestamp, step"
)
_LARGEST: Final = sys.float_info.max


def is_database(head: bytes) -> bool:
    """Return whether a file with these first bytes is an SQLite database."""
    return head.startswith(_BEGINNING)


def database_sources(path: Path) -> Iterator[Source]:
    """Yield the runs of a database; one without points that says why, if it cannot be read."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            runs = database.execute(_RUNS, (_MAX_RUNS,)).fetchall()
            for run, name in runs:
                points = list(_points_of(database, run))
                yield Source(path=path, name=str(name or run), format=FORMAT, points=points)
    except (sqlite3.Error, ValueError) as error:
        source = Source(path=path, format=FORMAT)
        source.note(f"it is no database of MLflow that can be read: {error}")
        yield source


def _points_of(database: sqlite3.Connection, run: str) -> Iterator[Point]:
    for key, value, milliseconds, step, is_nan in database.execute(_METRICS, (run,)):
        number = math.nan if is_nan else _with_infinity(float(value))
        yield Point(int(step), usual_time(milliseconds / 1000), {usual_name(str(key)): number})


def _with_infinity(value: float) -> float:
    """Return a value; MLflow stores an infinite one as the largest number."""
    return math.copysign(math.inf, value) if abs(value) >= _LARGEST else value
