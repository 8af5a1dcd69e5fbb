"""A CSV table for a spreadsheet: one row per record, one column per metric.

The columns are `datetime, timestamp, elapsedtime, rank, step, epoch, iteration,
validation_iteration` and then every metric in order of first appearance. A new metric adds a
column: the table is replaced atomically by one with the column. An existing file is continued.
Non-numeric values are written as JSON; text that a spreadsheet would treat as a formula is prefixed
with `'`. Only rank 0 writes.
"""

import csv
import io
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sonde.log.backend import LOG, QueuedBackend, Record
from sonde.log.steps import TABLE_COLUMNS, table_row
from sonde.records import disk
from sonde.records.files import explained, open_regular
from sonde.records.values import as_text

_MAX_CELL: Final = 1 << 30


class CSVBackend(QueuedBackend):
    """Writes LOG records as rows.

    ```python
    from sonde import Logger, Verbosity
    from sonde.log import CSVBackend

    with Logger(CSVBackend(Verbosity.DEFAULT, "log.csv", every_n=2)) as logger:
        for step in (1, 2):
            logger.log(step=step, data={"loss": 4.0 / step})
    ```
    """

    def __init__(self, verbosity: int, filename: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(verbosity, **options)
        self._path = Path(filename)
        self._columns: dict[str, None] = {}
        with explained(f"cannot write a table to {self._path}"):
            disk.make_directories(self._path.parent)
            self._read_columns()

    def send(self, record: Record) -> None:
        """Append one row."""
        if record["type"] != LOG:
            return
        row = {name: _cell(value) for name, value in table_row(record).items()}
        missing = [name for name in row if name not in self._columns]
        if missing:
            self._widen(missing)
        line = _csv_line([row.get(name, "") for name in self._columns])
        with self._path.open("ab") as file:
            file.write(line)

    def _read_columns(self) -> None:
        """Continue an existing table, ending a last row that a kill may have cut off."""
        if not self._path.exists() or self._path.stat().st_size == 0:
            return
        names = next(self._rows(), [])
        self._columns = dict.fromkeys(
            name[1:] if safe_cell(name[1:]) == name else name for name in names
        )
        with self._path.open("rb+") as raw:
            raw.seek(-1, os.SEEK_END)
            if raw.read(1) != b"\n":
                raw.write(b"\r\n")

    def _widen(self, names: list[str]) -> None:
        """Add columns by writing the table again, with empty cells in earlier rows. Not synced,
        unlike the run's records.
        """
        self._columns = dict.fromkeys([*(self._columns or TABLE_COLUMNS), *names])
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        with temporary.open("wb") as out:
            out.write(_csv_line(list(self._columns)))
            if self._path.exists():
                for row in islice(self._rows(), 1, None):
                    out.write(
                        _csv_line([*row, *[""] * (len(self._columns) - len(row))], escape=False)
                    )
        disk.replace(temporary, self._path)

    def _rows(self) -> Iterator[list[str]]:
        limit = csv.field_size_limit(_MAX_CELL)
        try:
            with (
                open_regular(self._path, follow=True) as file,
                io.TextIOWrapper(file, newline="", encoding="utf-8", errors="replace") as text,
            ):
                yield from csv.reader(text)
        finally:
            csv.field_size_limit(limit)


def _cell(value: Any) -> Any:
    """Return a value as a cell: a number as it is, nothing for None, anything else as text."""
    if isinstance(value, (int, float)):
        return value
    return "" if value is None else as_text(value)


def safe_cell(value: object) -> object:
    """Return a cell that a spreadsheet shows as text instead of evaluating it."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value


def _csv_line(cells: list[Any], *, escape: bool = True) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow([safe_cell(cell) for cell in cells] if escape else cells)
    return text.getvalue().encode("utf-8", errors="backslashreplace")
