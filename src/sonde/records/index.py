"""The index of a run: a metric's series, the records of a step, or every spike, without reading the record files.

    with RunIndex(RunLayout(run_directory)) as index:
        index.refresh()                              reads what was appended since the last time
        loss = index.series("loss")                  loss.steps, loss.values
        for entry in index.entries("spikes"):        where each record is
            index.read(entry)                        the record itself

The record files are authoritative. The index, `index.sqlite` beside them, may be deleted at any time and is rebuilt by
the next `refresh`. A damaged index is rebuilt; if it cannot be written (a read-only directory, a full disk), an
in-memory one is used for the life of this object. Several processes may refresh and read one run at once; one object
belongs to one thread.

Cost in CPU time (benchmarks/records.py): building takes 5.3 s for a million records of ten numbers, and 130 MB of
memory whatever their number. A refresh without new data takes 1 ms per file; with new data, 0.06 s more on average and
0.15 s at most, because the last chunk is read again. A series of a million values then opens in about 10 ms, the record
of a step in 2 ms.

    index_chunk      part of a record file as columns
    index_database   the tables, opening and updating them
"""
# ruff: noqa: S608  queries are built from this module's own text; user input is always a parameter

import contextlib
import functools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar, final

import numpy as np

from sonde.records.index_chunk import NO_STEP, Floats, Integers, even_steps, step_as_numbers
from sonde.records.index_database import check_row, discard_database, memory_database, open_database, update
from sonde.records.layout import LOG, RunLayout
from sonde.records.reader import Record, has_damaged_end, read_record_at

Step: TypeAlias = int | tuple[int, ...] | str
"""A step as in a record: a number, a tuple of two or three numbers, or text."""

_P = ParamSpec("_P")
_Answer = TypeVar("_Answer")
_STEPS: Final = "chunks.num_records, num_bad, step_width, step_low, step_high, steps, steps_crc"
"""The columns that `_steps_of` takes."""


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Series:
    """The values of one metric, in order."""

    steps: Integers
    """One number per value. If any step is a list, one row per value (epoch, iteration, validation iteration), padded
    with NO_STEP, which also stands for steps that are not numbers."""
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    @property
    def iterations(self) -> Integers:
        """One number per value: the step, or a list's iteration, or its epoch if it has none; NO_STEP if unknown."""
        if self.steps.ndim == 1:
            return self.steps
        if self.steps.shape[1] == 1:
            return self.steps[:, 0]
        return np.where(self.steps[:, 1] == NO_STEP, self.steps[:, 0], self.steps[:, 1])

    def step_at(self, position: int) -> int | list[int] | None:
        """Return the step of one value, as logged; None if it had no numbers."""
        numbers: list[int] = [number for number in np.atleast_1d(self.steps[position]).tolist() if number != NO_STEP]
        if self.steps.ndim == 1:
            return numbers[0] if numbers else None
        return numbers or None


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Where one record is, and its type and step."""

    path: Path
    kind: str
    rank: int
    offset: int
    """Byte offset of its line."""
    type: str | None
    """The record's `type`, if it is text."""
    step: Step | None
    """The record's `step`; a list of one number counts as the number."""


def _from_one_snapshot(
    question: Callable[Concatenate["RunIndex", _P], _Answer],
) -> Callable[Concatenate["RunIndex", _P], _Answer]:
    """Decorate a query to run in one database snapshot, whatever other processes do meanwhile."""

    @functools.wraps(question)
    def ask(index: "RunIndex", /, *args: _P.args, **kwargs: _P.kwargs) -> _Answer:
        try:
            with index._snapshot():
                return question(index, *args, **kwargs)
        except sqlite3.DatabaseError as error:
            index._recover(error)
            with index._snapshot():
                return question(index, *args, **kwargs)

    return ask


@final
class RunIndex:
    """The index of one run directory. Answers are as of the last `refresh` by any process."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._connection = open_database(layout.index)

    def __enter__(self) -> "RunIndex":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def refresh(self) -> None:
        """Add what was appended to the record files since the last refresh, and drop what was removed."""
        try:
            update(self._connection, self._layout.record_files())
        except sqlite3.DatabaseError as error:
            self._recover(error)

    @_from_one_snapshot
    def metrics(self, kind: str = LOG) -> dict[str, int]:
        """Return the metrics of a kind by name, each with its number of values over all ranks."""
        rows = self._connection.execute(
            """SELECT metrics.name, metrics.crc, sum(num_values) FROM columns
               JOIN files ON files.id = columns.file JOIN metrics ON metrics.id = columns.metric
               WHERE kind = ? GROUP BY metric ORDER BY metrics.name""",
            (kind,),
        )
        found = {}
        for name, crc, num_values in rows:
            check_row(crc, name)
            found[name] = num_values
        return found

    @_from_one_snapshot
    def series(self, metric: str, *, kind: str = LOG, rank: int = 0) -> Series:
        """Return every value of a metric that one rank wrote, in written order; empty if there is none."""
        found = "FROM columns JOIN chunks ON chunks.id = columns.chunk WHERE metric = ? AND columns.file = ?"
        ids = self._connection.execute(
            "SELECT metrics.id, files.id FROM metrics, files WHERE metrics.name = ? AND kind = ? AND rank = ?",
            (metric, kind, rank),
        ).fetchone() or (None, None)
        num_values, width = self._connection.execute(
            f"SELECT coalesce(sum(num_values), 0), coalesce(max(step_width), 1) {found}", ids
        ).fetchone()
        # Filled in place: concatenating the pieces afterwards took twice as long (24 ms instead of 11 for a million
        # values).
        values = np.empty(num_values, np.float64)
        steps = np.empty((num_values, width), np.int64)
        end = 0
        # Ordered by chunk id, which is file order: chunks are only ever added at a file's end.
        for crc, chunk, file, num_in_chunk, rows, numbers, *described in self._connection.execute(
            f"SELECT crc, chunk, columns.file, num_values, rows, numbers, {_STEPS} {found} ORDER BY columns.chunk", ids
        ):
            check_row(crc, metric, chunk, file, num_in_chunk, rows, numbers)
            start, end = end, end + len(numbers) // values.itemsize
            values[start:end] = np.frombuffer(numbers, np.float64)
            part = _steps_of(*described)
            steps[start:end, : part.shape[1]] = part if rows is None else part[np.frombuffer(rows, np.int32)]
            steps[start:end, part.shape[1] :] = NO_STEP
        return Series(steps=steps[:, 0] if width == 1 else steps, values=values)

    @_from_one_snapshot
    def entries(self, kind: str, *, type: str | None = None, rank: int | None = None) -> list[Entry]:  # noqa: A002  the name of the field
        """Return every record of a kind (of one `type`, if given), by rank and in written order."""
        if type is not None:
            return self._marked("type", type, kind, rank)
        return [entry for chunk in self._chunks(kind, rank) for entry in self._entries_of(chunk)]

    @_from_one_snapshot
    def records_at_step(self, kind: str, step: int | Sequence[int] | str, *, rank: int | None = None) -> list[Entry]:
        """Return the records whose step is exactly `step`, by rank and in written order."""
        if isinstance(step, str):
            return self._marked("step", step, kind, rank)
        found: list[Entry] = []
        wanted = step_as_numbers(step)
        if not wanted:
            return found
        for chunk in self._chunks(kind, rank, "AND ? BETWEEN step_low AND step_high", (wanted[0],)):
            width = chunk.steps.shape[1]
            if len(wanted) <= width:
                padded = np.array((*wanted, *[NO_STEP] * (width - len(wanted))), np.int64)
                rows = np.flatnonzero((chunk.steps == padded).all(axis=1))
                found += self._entries_of(chunk, rows.tolist())
        return found

    def read(self, entry: Entry) -> Record | None:
        """Return the record itself, or None if the file no longer has it there."""
        try:
            return read_record_at(entry.path, entry.offset)
        except FileNotFoundError:
            return None

    def num_records(self, kind: str = LOG, *, rank: int | None = None) -> int:
        """Return the number of records of a kind."""
        return self._total("num_records", kind, rank)

    def num_bad(self, kind: str = LOG, *, rank: int | None = None) -> int:
        """Return the number of invalid lines in a kind's files; `reader.read_records` says where they are."""
        files = [file.path for file in self._layout.record_files(kind) if rank in (None, file.rank)]
        return self._total("num_bad", kind, rank) + sum(map(has_damaged_end, files))

    @_from_one_snapshot
    def _total(self, column: str, kind: str, rank: int | None) -> int:
        """Return the sum of a column of the chunk table."""
        found = 0
        for number, *described, crc in self._connection.execute(
            f"""SELECT {column}, {_STEPS} FROM chunks JOIN files ON files.id = chunks.file
                WHERE kind = ? AND rank = coalesce(?, rank)""",
            (kind, rank),
        ):
            check_row(crc, *described)
            found += number
        return found

    def _marked(self, field: str, text: str, kind: str, rank: int | None) -> list[Entry]:
        """Return the records of a kind with this text in `field`, which is `type` or `step`."""
        condition = "AND chunks.id IN (SELECT chunk FROM marks WHERE field = ? AND text = ?)"
        chunks = self._chunks(kind, rank, condition, (field, text))
        return [entry for chunk in chunks for entry in self._entries_of(chunk) if getattr(entry, field) == text]

    def _chunks(
        self, kind: str, rank: int | None, condition: str = "", parameters: tuple[Any, ...] = ()
    ) -> list["_Chunk"]:
        rows = self._connection.execute(
            f"""SELECT chunks.id, files.name, kind, rank, chunks.file, first_byte, chunks.num_bytes, offsets, offsets_crc, {_STEPS}
                FROM chunks
                JOIN files ON files.id = chunks.file
                WHERE kind = ? AND rank = coalesce(?, rank) {condition} ORDER BY rank, first_byte""",
            (kind, rank, *parameters),
        )
        found = []
        for chunk, name, kind, rank, file, first_byte, num_bytes, offsets, crc, *described in rows:
            check_row(crc, file, first_byte, num_bytes, offsets)
            path = self._layout.records / name
            found.append(_Chunk(chunk, path, kind, rank, np.frombuffer(offsets, np.int64), _steps_of(*described)))
        return found

    def _entries_of(self, chunk: "_Chunk", rows: Sequence[int] | None = None) -> list[Entry]:
        """Return the records of a chunk, or those at the given rows."""
        every = range(len(chunk.offsets))
        texts: dict[str, dict[int, str]] = {"type": {}, "step": {}}
        marks = self._connection.execute("SELECT field, text, rows, crc FROM marks WHERE chunk = ?", (chunk.id,))
        for field, text, where, crc in marks:
            check_row(crc, chunk.id, field, text, where)
            marked = every if where is None else np.frombuffer(where, np.int32).tolist()
            texts[field].update(dict.fromkeys(marked, text))
        return [
            Entry(
                path=chunk.path,
                kind=chunk.kind,
                rank=chunk.rank,
                offset=int(chunk.offsets[row]),
                type=texts["type"].get(row),
                step=texts["step"].get(row, _as_step(chunk.steps[row].tolist())),
            )
            for row in (every if rows is None else rows)
        ]

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """Switch to another database, because this one fails, and fill it from the record files."""
        if isinstance(error, sqlite3.ProgrammingError):
            raise error  # closed, or used from another thread: the caller's mistake
        self._connection.close()
        if isinstance(error, sqlite3.OperationalError):
            self._connection = memory_database()
        else:
            discard_database(self._layout.index)
            self._connection = open_database(self._layout.index)
        update(self._connection, self._layout.record_files())


class _Chunk(NamedTuple):
    """A row of the chunk table."""

    id: int
    path: Path
    kind: str
    rank: int
    offsets: Integers
    steps: Integers


def _steps_of(num_records: int, *described: Any) -> Integers:
    """Return one row per record, from the columns in `_STEPS`."""
    num_bad, width, low, high, steps, crc = described
    check_row(crc, num_records, num_bad, width, low, high, steps)
    if steps is not None:
        return np.frombuffer(steps, np.int64).reshape(num_records, width)
    return even_steps(low, high, num_records)


def _as_step(numbers: list[int]) -> int | tuple[int, ...] | None:
    known = tuple(number for number in numbers if number != NO_STEP)
    return known if len(known) > 1 else known[0] if known else None
