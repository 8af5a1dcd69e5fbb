"""A table that a spreadsheet opens: a row a record, a column a metric.

The columns are `datetime, timestamp, elapsedtime, rank, step, epoch, iteration, validation_iteration` and then every
metric in the order of its first appearance. A metric that appears later adds a column: the file is then rewritten, whole
or not at all. An existing file is continued. Values that are no numbers are written as JSON. Only rank 0 writes.
"""

import csv
import io
import os
from pathlib import Path
from typing import Any, Final, final

from typing_extensions import Unpack

from sonde.errors import RunError
from sonde.log.backend import LOG, Record
from sonde.log.queued import QueuedBackend, QueuedOptions
from sonde.log.steps import step_parts
from sonde.records import disk
from sonde.records.values import encode

LEADING_COLUMNS: Final = (
    "datetime",
    "timestamp",
    "elapsedtime",
    "rank",
    "step",
    "epoch",
    "iteration",
    "validation_iteration",
)


@final
class CSVBackend(QueuedBackend):
    """Writes LOG records as rows."""

    def __init__(self, verbosity: int, filename: str | os.PathLike[str], **options: Unpack[QueuedOptions]) -> None:
        super().__init__(verbosity, **options)
        self._path = Path(filename)
        self._columns: dict[str, None] = {}
        try:
            disk.make_directories(self._path.parent)
            self._read_columns()
        except OSError as error:
            raise RunError(f"cannot write a table to {self._path}", cause=f"{error.strerror or error}") from error

    def send(self, record: Record) -> None:
        """Append one row."""
        if record["type"] != LOG:
            return
        row = _row(record)
        missing = [name for name in row if name not in self._columns]
        if missing:
            self._widen(missing)
        line = _csv_line([row.get(name, "") for name in self._columns])
        with self._path.open("ab") as file:
            file.write(line)

    def _read_columns(self) -> None:
        """Continue an existing table, ending a last row that a kill may have torn."""
        if not self._path.exists() or self._path.stat().st_size == 0:
            return
        with self._path.open(newline="", encoding="utf-8", errors="replace") as file:
            self._columns = dict.fromkeys(next(csv.reader(file), []))
        with self._path.open("rb+") as raw:
            raw.seek(-1, os.SEEK_END)
            if raw.read(1) != b"\n":
                raw.write(b"\r\n")

    def _widen(self, names: list[str]) -> None:
        """Add columns: every row written so far gets empty cells for them."""
        rows: list[list[str]] = []
        if self._columns:
            with self._path.open(newline="", encoding="utf-8", errors="replace") as file:
                rows = list(csv.reader(file))[1:]
        columns = dict.fromkeys([*(self._columns or LEADING_COLUMNS), *names])
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        with temporary.open("wb") as out:
            out.write(_csv_line(list(columns)))
            for row in rows:
                out.write(_csv_line([*row, *[""] * (len(columns) - len(row))]))
        disk.replace(temporary, self._path)
        self._columns = columns


def _row(record: Record) -> dict[str, Any]:
    parts = step_parts(record["step"])
    row = {name: record[name] for name in LEADING_COLUMNS[:4]}
    row["step"] = _cell(record["step"])
    row |= {name: "" if part is None else part for name, part in parts._asdict().items()}
    for name, value in record["data"].items():
        # A metric may have the name of one of our columns (TCAP's users log their rank): it gets a column of its own.
        row[f"data.{name}" if name in LEADING_COLUMNS else str(name)] = _cell(value)
    return row


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, (int, float, str)):
        return value
    return encode(value).decode().strip()


def _csv_line(cells: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().encode("utf-8", errors="backslashreplace")
