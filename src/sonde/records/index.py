"""The index of a run: a metric's series, or the records of a step, without reading the record
files.

    with RunIndex(RunLayout(run_directory)) as index:
        index.refresh()                              reads what was appended since the last time
        loss = index.series("loss")                  loss.steps, loss.values
        index.records_at_step("spikes", 1734)        the records themselves

The record files are authoritative. The index, `index.sqlite` beside them, may be deleted at any
time and is rebuilt by the next `refresh`. A damaged index is rebuilt; if it cannot be written (a
read-only directory, a full disk), an in-memory one is used for the life of this object. Several
processes may refresh and read one run at once; one object belongs to one thread.

Cost in CPU time (benchmarks/records.py): building takes 3.1 s for a million records of ten numbers,
and 92 MB of memory whatever their number. A refresh without new data takes 1 ms per file; with new
data, 0.06 s more on average and 0.15 s at most, because the last chunk is read again. A series of a
million values then opens in about 10 ms, the record of a step in 2 ms.

    index_database   the tables, opening and updating them
"""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from sonde.records import index_database
from sonde.records.columns import Integers, Series, join_rows
from sonde.records.index_database import ABOUT, DATA, OFFSET, check_columns
from sonde.records.layout import LOG, RecordFileName, RunLayout
from sonde.records.reader import Record, has_damaged_end, read_record_at
from sonde.records.values import step_numbers

_COUNTS: Final = "SELECT name, sum(num_values) FROM columns WHERE file = ? GROUP BY name"
_COLUMN: Final = "SELECT * FROM columns WHERE file = ? AND name = ? ORDER BY first_byte"
_WITH_STEPS: Final = """SELECT one.*, steps.* FROM columns AS one JOIN columns AS steps
    ON steps.file = one.file AND steps.name = 'step' AND steps.first_byte = one.first_byte
    WHERE one.file = ? AND one.name = ? AND one.first_byte = coalesce(?, one.first_byte)
    ORDER BY one.first_byte"""


class RunIndex:
    """The index of one run directory. Answers are as of the last `refresh` by any process.

    ```python
    from sonde import Run
    from sonde.records import RunIndex

    with Run("runs/mine") as run:
        run.logger.log(1, {"loss": 4.5})
    with RunIndex(run.layout) as index:
        index.refresh()
        assert index.series("loss").values.tolist() == [4.5]
    ```
    """

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._connection = index_database.open_database(layout.index)

    def __enter__(self) -> "RunIndex":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def refresh(self) -> None:
        """Add what was appended to the record files since the last refresh, and drop what was
        removed.
        """
        try:
            self._update()
        except sqlite3.DatabaseError as error:
            self._recover(error)

    def metrics(self, kind: str = LOG) -> dict[str, int]:
        """Return the metrics of a kind by name, each with its number of values over all ranks."""
        counts: Counter[str] = Counter()
        for file in self._layout.record_files(kind):
            found = self._ask(_COUNTS, file.path.name)
            counts.update(
                {name.removeprefix(DATA): num for name, num in found if name.startswith(DATA)}
            )
        return dict(sorted(counts.items()))

    def series(self, metric: str, *, kind: str = LOG, rank: int = 0) -> Series:
        """Return every value of a metric that one rank wrote, in written order; empty if there is
        none.
        """
        chunks = list(
            self._with_steps(self._layout.record_file(kind, rank).name, f"{DATA}{metric}")
        )
        steps = join_rows([np.empty((0, 1), np.int64), *(steps for steps, _ in chunks)])
        values = np.concatenate(
            [np.empty(0), *(np.frombuffer(numbers, np.float64) for _, numbers in chunks)]
        )
        return Series(steps=steps[:, 0] if steps.shape[1] == 1 else steps, values=values)

    def records_at_step(
        self, kind: str, step: int | Sequence[int], *, rank: int | None = None
    ) -> list[Record]:
        """Return the records whose step is exactly `step`, by rank and in written order."""
        wanted = np.array([step_numbers(step)], np.int64)
        found = []
        for file, first_byte, (_, _, low, high) in self._chunks(kind, rank) if wanted.size else ():
            if not low <= wanted[0, 0] <= high:
                continue
            for steps, offsets in self._with_steps(file.path.name, OFFSET, first_byte):
                rows = join_rows([wanted, steps])
                for offset in np.frombuffer(offsets, np.int64)[
                    (rows[1:] == rows[0]).all(axis=1)
                ].tolist():
                    with contextlib.suppress(FileNotFoundError):
                        found.append(read_record_at(file.path, offset))
        return [record for record in found if record is not None]

    def num_records(self, kind: str = LOG, *, rank: int | None = None) -> int:
        """Return the number of records of a kind."""
        return sum(num_records for _, _, (num_records, *_) in self._chunks(kind, rank))

    def num_bad(self, kind: str = LOG, *, rank: int | None = None) -> int:
        """Return the number of invalid lines in a kind's files; `reader.read_records` says where
        they are.
        """
        num_bad = sum(num_bad for _, _, (_, num_bad, *_) in self._chunks(kind, rank))
        return num_bad + sum(has_damaged_end(file.path) for file in self._files(kind, rank))

    def _files(self, kind: str, rank: int | None) -> list[RecordFileName]:
        return [file for file in self._layout.record_files(kind) if rank in (None, file.rank)]

    def _chunks(
        self, kind: str, rank: int | None
    ) -> Iterator[tuple[RecordFileName, int, list[int]]]:
        """Yield every chunk: its file, where it begins, and the four numbers about it."""
        for file in self._files(kind, rank):
            for _, _, first_byte, _, _, about, _ in self._ask(_COLUMN, file.path.name, ABOUT):
                yield file, first_byte, np.frombuffer(about, np.int64).tolist()

    def _with_steps(
        self, file: str, name: str, first_byte: int | None = None
    ) -> Iterator[tuple[Integers, bytes]]:
        """Yield a column chunk by chunk: the steps, a row for each number, and the numbers."""
        for row in self._ask(_WITH_STEPS, file, name, first_byte):
            rows = row[4]
            numbers = row[5]
            num_records = row[10]
            steps = row[12]
            all_steps = np.frombuffer(steps, np.int64).reshape(num_records, -1)
            yield (all_steps if rows is None else all_steps[np.frombuffer(rows, np.int32)]), numbers

    def _ask(self, question: str, *parameters: object) -> list[Any]:
        """Return the rows of one query, which sees one state, whatever other processes do
        meanwhile. Columns are checked.
        """
        try:
            rows = self._connection.execute(question, parameters).fetchall()
            check_columns(rows)
        except sqlite3.DatabaseError as error:
            self._recover(error)
            rows = self._connection.execute(question, parameters).fetchall()
        return rows

    def _update(self) -> None:
        index_database.update(self._connection, [file.path for file in self._layout.record_files()])

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """Switch to another database, because this one fails, and fill it from the record files."""
        if isinstance(error, sqlite3.ProgrammingError):
            raise error  # closed, or used from another thread: the caller's mistake
        self._connection.close()
        if isinstance(error, sqlite3.OperationalError):
            self._connection = index_database.connect(index_database.IN_MEMORY)
        else:
            self._connection = index_database.open_database(self._layout.index, afresh=True)
        self._update()
