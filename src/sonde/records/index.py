"""The index of a run: one metric's series, the records of a step, or every spike, without reading the record files.

    with RunIndex(RunLayout(run_directory)) as index:
        index.refresh()                              takes in what was appended since the last time
        loss = index.series("loss")                  loss.steps, loss.values
        for entry in index.entries("spikes"):        where each record stands
            index.read(entry)                        and what it says

The record files are the truth; the index, `index.sqlite` beside them, may be deleted at any time and is rebuilt by the next
`refresh`. It is never in the way: a damaged one is rebuilt, and where it cannot be written (a read-only directory, a full
disk) one in memory serves as long as this object lives. Several processes may refresh and read one run at once; one
object belongs to one thread.

Cost (benchmarks/records.py, CPU): building takes 5.3 s for a million records of ten numbers, and 130 MB of memory whatever
their number; a refresh without news 1 ms a file, with news 0.06 s more on average, 0.15 s at most (the last chunk is read again). A series of a
million values then opens in about 10 ms, the record of a step in 2 ms.

    index_chunk      a stretch of a record file as columns
    index_update     what was appended, into the database
    index_database   the tables, and opening them
    index_query      the questions
"""

import sqlite3
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar, final

from sonde.records import index_query
from sonde.records.index_database import discard_database, memory_database, open_database
from sonde.records.index_query import Entry, Series
from sonde.records.index_update import update
from sonde.records.layout import LOG, RunLayout
from sonde.records.reader import Record, read_record_at

_Answer = TypeVar("_Answer")


@final
class RunIndex:
    """The index of one run directory. Answers are as of the last `refresh`, by any process."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._connection = open_database(layout.index)

    def __enter__(self) -> "RunIndex":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def refresh(self) -> None:
        """Take in what the record files have gained, and forget what they have lost, since the last time."""
        try:
            self._refresh()
        except sqlite3.DatabaseError as error:
            self._recover(error)

    def metrics(self, kind: str = LOG) -> dict[str, int]:
        """The metrics of a kind, by name, each with the number of its values over all ranks."""
        return self._ask(lambda connection: index_query.metric_counts(connection, kind))

    def series(self, metric: str, *, kind: str = LOG, rank: int = 0) -> Series:
        """Every value of a metric that one rank wrote; empty when there is none."""
        return self._ask(lambda connection: index_query.read_series(connection, metric, kind, rank))

    def entries(self, kind: str, *, type: str | None = None, rank: int | None = None) -> list[Entry]:  # noqa: A002  as the field is called
        """Every record of a kind (of one `type`, if given), by rank and in the order they were written."""
        if type is None:
            return self._ask(lambda connection: index_query.all_entries(connection, self._layout, kind, rank))
        mark = ("type", type)
        return self._ask(lambda connection: index_query.marked_entries(connection, self._layout, mark, kind, rank))

    def records_at_step(self, kind: str, step: int | Sequence[int] | str, *, rank: int | None = None) -> list[Entry]:
        """The records whose step is exactly `step`, by rank and in the order they were written."""
        if isinstance(step, str):
            mark = ("step", step)
            return self._ask(lambda connection: index_query.marked_entries(connection, self._layout, mark, kind, rank))
        return self._ask(lambda connection: index_query.entries_at_step(connection, self._layout, step, kind, rank))

    def read(self, entry: Entry) -> Record | None:
        """The record itself; None when the file no longer holds it there."""
        try:
            return read_record_at(entry.path, entry.offset)
        except FileNotFoundError:
            return None

    def num_records(self, kind: str = LOG, *, rank: int | None = None) -> int:
        """How many records there are of a kind."""
        return self._ask(lambda connection: index_query.total(connection, "num_records", kind, rank))

    def num_bad(self, kind: str = LOG, *, rank: int | None = None) -> int:
        """How many lines of a kind's files are no records; `reader.read_records` says where."""
        return self._ask(lambda connection: index_query.total(connection, "num_bad", kind, rank))

    def _refresh(self) -> None:
        update(self._connection, self._layout.record_files())

    def _ask(self, question: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        """The answer, from one snapshot of the database whatever other processes do to it meanwhile."""
        try:
            return self._ask_once(question)
        except sqlite3.DatabaseError as error:
            self._recover(error)
            return self._ask_once(question)

    def _ask_once(self, question: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        self._connection.execute("BEGIN")
        try:
            return question(self._connection)
        finally:
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """Take another database, since this one fails, and fill it: the record files have it all."""
        if isinstance(error, sqlite3.ProgrammingError):
            raise error  # closed, or another thread's: the caller's mistake
        self._connection.close()
        if isinstance(error, sqlite3.OperationalError):
            self._connection = memory_database()
        else:
            discard_database(self._layout.index)
            self._connection = open_database(self._layout.index)
        self._refresh()
