"""Questions to the index's database. Each function reads only, and belongs inside one transaction (index.py sees to it).

Results are numpy arrays, or entries that say where a record stands; the tables are described in docs/formats/index.md.
"""
# ruff: noqa: S608  the queries are put together from this module's own text; what users give is always a parameter

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np

from sonde.records.index_chunk import NO_STEP, Floats, Integers, even_steps, step_as_numbers
from sonde.records.index_database import check_row
from sonde.records.layout import RunLayout

Step: TypeAlias = int | tuple[int, ...] | str
"""A step as a record has it: a number, two or three of them, or text."""

_STEPS: Final = "chunks.num_records, num_bad, step_width, step_low, step_high, steps, steps_crc"
"""What `_steps_of` takes."""


def metric_counts(connection: sqlite3.Connection, kind: str) -> dict[str, int]:
    """The metrics of a kind, by name, each with the number of its values."""
    rows = connection.execute(
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


def read_series(connection: sqlite3.Connection, metric: str, kind: str, rank: int) -> "Series":
    """Every value of a metric in one file."""
    found = "FROM columns JOIN chunks ON chunks.id = columns.chunk WHERE metric = ? AND columns.file = ?"
    ids = connection.execute(
        "SELECT metrics.id, files.id FROM metrics, files WHERE metrics.name = ? AND kind = ? AND rank = ?",
        (metric, kind, rank),
    ).fetchone() or (None, None)
    num_values, width = connection.execute(
        f"SELECT coalesce(sum(num_values), 0), coalesce(max(step_width), 1) {found}", ids
    ).fetchone()
    # Filled piece by piece: joining the pieces afterwards took twice as long (24 ms against 11 for a million values).
    values = np.empty(num_values, np.float64)
    steps = np.empty((num_values, width), np.int64)
    end = 0
    # In order of chunk ids, which is that of the file: chunks are only ever added at a file's end.
    for crc, chunk, file, num_in_chunk, rows, numbers, *described in connection.execute(
        f"SELECT crc, chunk, columns.file, num_values, rows, numbers, {_STEPS} {found} ORDER BY columns.chunk", ids
    ):
        check_row(crc, metric, chunk, file, num_in_chunk, rows, numbers)
        start, end = end, end + len(numbers) // values.itemsize
        values[start:end] = np.frombuffer(numbers, np.float64)
        part = _steps_of(*described)
        steps[start:end, : part.shape[1]] = part if rows is None else part[np.frombuffer(rows, np.int32)]
        steps[start:end, part.shape[1] :] = NO_STEP
    return Series(steps=steps[:, 0] if width == 1 else steps, values=values)


def all_entries(connection: sqlite3.Connection, layout: RunLayout, kind: str, rank: int | None) -> list["Entry"]:
    """Every record of a kind."""
    return [
        entry
        for chunk in _chunks(connection, kind, rank)
        for entry in _entries_of(connection, layout, chunk, range(len(chunk.offsets)))
    ]


def marked_entries(
    connection: sqlite3.Connection, layout: RunLayout, mark: tuple[str, str], kind: str, rank: int | None
) -> list["Entry"]:
    """The records of a kind that hold a text: `mark` is the field (type or step) and the text."""
    found: list[Entry] = []
    condition = "AND chunks.id IN (SELECT chunk FROM marks WHERE field = ? AND text = ?)"
    for chunk in _chunks(connection, kind, rank, condition, mark):
        rows, crc = connection.execute(
            "SELECT rows, crc FROM marks WHERE chunk = ? AND field = ? AND text = ?", (chunk.id, *mark)
        ).fetchone()
        check_row(crc, chunk.id, *mark, rows)
        found += _entries_of(connection, layout, chunk, _row_numbers(rows, len(chunk.offsets)))
    return found


def entries_at_step(
    connection: sqlite3.Connection, layout: RunLayout, step: int | Sequence[int], kind: str, rank: int | None
) -> list["Entry"]:
    """The records of a kind that have exactly this step."""
    found: list[Entry] = []
    wanted = step_as_numbers(step)
    if not wanted:
        return found
    for chunk in _chunks(connection, kind, rank, "AND ? BETWEEN step_low AND step_high", (wanted[0],)):
        width = chunk.steps.shape[1]
        if len(wanted) <= width:
            padded = np.array((*wanted, *[NO_STEP] * (width - len(wanted))), np.int64)
            rows = np.flatnonzero((chunk.steps == padded).all(axis=1))
            found += _entries_of(connection, layout, chunk, rows.tolist())
    return found


def total(connection: sqlite3.Connection, column: str, kind: str, rank: int | None) -> int:
    """The sum of a column of the table of chunks (num_records, num_bad)."""
    found = 0
    for number, *described, crc in connection.execute(
        f"""SELECT {column}, {_STEPS} FROM chunks JOIN files ON files.id = chunks.file
            WHERE kind = ? AND rank = coalesce(?, rank)""",
        (kind, rank),
    ):
        check_row(crc, *described)
        found += number
    return found


def _chunks(
    connection: sqlite3.Connection, kind: str, rank: int | None, condition: str = "", parameters: tuple[Any, ...] = ()
) -> list["_Chunk"]:
    rows = connection.execute(
        f"""SELECT chunks.id, files.name, kind, rank, chunks.file, first_byte, chunks.num_bytes, offsets, offsets_crc, {_STEPS}
            FROM chunks
            JOIN files ON files.id = chunks.file
            WHERE kind = ? AND rank = coalesce(?, rank) {condition} ORDER BY rank, first_byte""",
        (kind, rank, *parameters),
    )
    found = []
    for chunk, name, kind, rank, file, first_byte, num_bytes, offsets, crc, *described in rows:
        check_row(crc, file, first_byte, num_bytes, offsets)
        places, steps = np.frombuffer(offsets, np.int64), _steps_of(*described)
        found.append(_Chunk(id=chunk, file_name=name, kind=kind, rank=rank, offsets=places, steps=steps))
    return found


def _entries_of(
    connection: sqlite3.Connection, layout: RunLayout, chunk: "_Chunk", rows: Sequence[int]
) -> list["Entry"]:
    texts: dict[str, dict[int, str]] = {"type": {}, "step": {}}
    marks = connection.execute("SELECT field, text, rows, crc FROM marks WHERE chunk = ?", (chunk.id,))
    for field, text, where, crc in marks:
        check_row(crc, chunk.id, field, text, where)
        texts[field].update(dict.fromkeys(_row_numbers(where, len(chunk.offsets)), text))
    return [
        Entry(
            path=layout.records / chunk.file_name,
            kind=chunk.kind,
            rank=chunk.rank,
            offset=int(chunk.offsets[row]),
            type=texts["type"].get(row),
            step=texts["step"].get(row, _as_step(chunk.steps[row].tolist())),
        )
        for row in rows
    ]


def _steps_of(num_records: int, *described: Any) -> Integers:
    """One row a record, from the columns `_STEPS`."""
    num_bad, width, low, high, steps, crc = described
    check_row(crc, num_records, num_bad, width, low, high, steps)
    if steps is not None:
        return np.frombuffer(steps, np.int64).reshape(num_records, width)
    assert low is not None
    assert high is not None
    return even_steps(low, high, num_records)


def _as_step(numbers: list[int]) -> int | tuple[int, ...] | None:
    known = tuple(number for number in numbers if number != NO_STEP)
    return known if len(known) > 1 else known[0] if known else None


def _row_numbers(rows: bytes | None, num_records: int) -> Sequence[int]:
    if rows is None:
        return range(num_records)
    found: list[int] = np.frombuffer(rows, np.int32).tolist()
    return found


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One metric over the records of one rank, in the order they were written."""

    steps: Integers
    """A number for each value; if any step is a list, a row for each value (epoch, iteration, …), padded with NO_STEP.
    NO_STEP also stands where a record has no numeric step."""
    values: Floats


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Where one record stands, and what it is."""

    path: Path
    kind: str
    rank: int
    offset: int
    """Byte offset of its line."""
    type: str | None
    """The record's `type`, if that is text."""
    step: Step | None
    """The record's `step`; a list of one number counts as the number."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunk:
    """A row of the table of chunks."""

    id: int
    file_name: str
    kind: str
    rank: int
    offsets: Integers
    steps: Integers
