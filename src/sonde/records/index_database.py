"""The SQLite database of the index: its tables, opening it in whatever state the file is, and
updating it.

A row per value would be far too many. The index stores chunks of some 16384 consecutive lines, or
16 MB of them, as columns (columns.py): where each record starts, its step, and for each metric the
numbers and their records. Memory is bounded by one chunk, whatever the file's size. Costs 4 µs of
CPU for a record of ten numbers (benchmarks/records.py).

The file can always be rebuilt from the record files, so nothing here tries to repair it: a damaged
file, a foreign database or one of another version is deleted and recreated. If the file cannot be
used at all (a read-only directory, a full disk, a lock held by another process), the caller gets an
in-memory database. The tables are described in docs/formats/index.md.

Only what was appended to a record file is read. For each file, the index stores how many bytes it
has read and a fingerprint of their first and last 4 kB. While that matches, reading resumes with
the last chunk, which is read again and replaced, so that chunks stay few. A truncated or replaced
file is indexed from its start, and so is one with damaged lines that was written to and did not
grow: it may have been mended.

Files are read and parsed outside any transaction. Writing takes one short transaction per eight
chunks, which first checks that no other process has updated the file's state. So two processes may
update at once without waiting for each other's parsing, and a killed one leaves what it had
committed.
"""

import contextlib
import functools
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from sonde.records.columns import Columns, Integers
from sonde.records.files import open_regular
from sonde.records.reader import LineScanner, decode_block, parse_line
from sonde.records.values import NO_STEP

CHUNK_RECORDS: Final = 16384
CHUNK_BYTES: Final = 16 << 20
"""A chunk ends with the block of lines that takes it past this many bytes, because records may be
long.
"""
ABOUT: Final = "about"
"""The column with four numbers about a chunk: its records, its damaged lines, and the range of its
steps.
"""
OFFSET: Final = "offset"
DATA: Final = "data."
"""Begins the name of a metric's column."""
IN_MEMORY: Final = ":memory:"
_CHUNKS_PER_TRANSACTION: Final = 8
_FINGERPRINT_BYTES: Final = 4096
_BUSY_SECONDS: Final = 30.0
_CHECKED_BYTES: Final = 4 << 20
_SIZE: Final = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
# a column of 128 kB is read in half the CPU time of SQLite's default of 4096
_PAGE_BYTES: Final = 16384

# Increase the version with every change of what counts as a metric: an index with other tables or
# texts is rebuilt.
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS files ( -- index of sonde, version 5
    name TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL, resume_at INTEGER NOT NULL, damaged INTEGER,
    fingerprint BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS columns (
    file TEXT NOT NULL REFERENCES files ON DELETE CASCADE, name TEXT NOT NULL,
    first_byte INTEGER NOT NULL,
    num_values INTEGER NOT NULL, rows BLOB, numbers BLOB NOT NULL, crc INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS columns_by_name ON columns (file, name, first_byte, num_values);
"""
_NUM_FIELDS: Final = 7
"""Number of fields of a column; the last is its checksum."""


def row_crc(*fields: object) -> int:
    """Return the checksum that a column stores of its other fields: numbers, text and byte
    arrays.
    """
    crc = 0
    for field in fields:
        crc = crc32(field if isinstance(field, bytes) else repr(field).encode(), crc)
    return crc


def check_columns(rows: list[Any]) -> None:
    """Raise what SQLite raises for a damaged file if a column is not as written; the index is then
    rebuilt.

    A row of a query may be several whole columns, or something shorter, which has no checksum.
    """
    for row in rows:
        for end in range(_NUM_FIELDS, len(row) + 1, _NUM_FIELDS):
            *fields, crc = row[end - _NUM_FIELDS : end]
            if row_crc(*fields) != crc:
                raise sqlite3.DatabaseError("a row of the index is damaged")


def open_database(path: Path, *, afresh: bool = False) -> sqlite3.Connection:
    """Open the database at `path`, creating or recreating it if needed; in memory if the file
    cannot be used.

    Anything there that is not a regular file is left alone: a link would let whoever made the run
    write elsewhere.
    """
    files = [path.with_name(f"{path.name}{ending}") for ending in ("", "-journal", "-wal", "-shm")]
    if any(os.path.lexists(file) and (file.is_symlink() or not file.is_file()) for file in files):
        return connect(IN_MEMORY)
    for is_discarded in (afresh, True):
        if is_discarded:
            for file in files:
                with contextlib.suppress(OSError):
                    file.unlink()
        try:
            return connect(path)
        except sqlite3.OperationalError:
            break
        except sqlite3.DatabaseError:
            pass  # damaged, or not ours: once more without the file
    return connect(IN_MEMORY)


def connect(place: Path | str) -> sqlite3.Connection:
    """Connect to a database, creating the tables of an empty one. Raises DatabaseError if it is not
    an intact index.
    """
    connection = sqlite3.connect(place, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
        if not _schema(connection):
            connection.executescript(
                f"PRAGMA page_size = {_PAGE_BYTES}; BEGIN IMMEDIATE; {_TABLES} COMMIT;"
            )
        # A foreign view or trigger could run for any length of time when queried.
        if _schema(connection) != _own_schema():
            raise sqlite3.DatabaseError("not an index of this version")
        # SQLite can find a row that is missing, which row checksums cannot, at 2 ms per megabyte.
        (num_bytes,) = connection.execute(_SIZE).fetchone()
        if num_bytes <= _CHECKED_BYTES and connection.execute(
            "PRAGMA integrity_check(1)"
        ).fetchone() != ("ok",):
            raise sqlite3.DatabaseError("the index is damaged")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _schema(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute(
        "SELECT name, coalesce(sql, '') FROM sqlite_master ORDER BY name"
    ).fetchall()


@functools.cache
def _own_schema() -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_TABLES)
        return _schema(connection)


def update(connection: sqlite3.Connection, files: list[Path]) -> None:
    """Update the index to what `files` contain now, and drop all other files."""
    names = {path.name for path in files}
    for (name,) in connection.execute("SELECT name FROM files").fetchall():
        if name not in names:
            connection.execute("DELETE FROM files WHERE name = ?", (name,))
    for path in files:
        while not _update_file(connection, path):
            pass  # another process is updating it: continue from its state


def _update_file(connection: sqlite3.Connection, path: Path) -> bool:
    """Update one file. Return False if another process changed its state meanwhile."""
    state = _load_state(connection, path)
    try:
        stream = open_regular(path)
    except FileNotFoundError:
        return True  # deleted since it was listed: the next refresh drops it
    with stream:
        if state is not None and _is_changed(stream, state):
            # Only as we know it: another process may have indexed it anew meanwhile.
            connection.execute(
                "DELETE FROM files WHERE name = ? AND fingerprint = ?",
                (path.name, state.fingerprint),
            )
            state = None
        if (
            next(LineScanner(path, offset=state.num_bytes if state else 0).blocks(stream), None)
            is None
        ):
            return True  # nothing new, or a line that is torn or still being written
        chunks = read_chunks(LineScanner(path, offset=state.resume_at if state else 0), stream)
        while batch := list(islice(chunks, _CHUNKS_PER_TRANSACTION)):
            new = _new_state(stream, state, batch)
            with connection:  # commits at its end, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                if _load_state(connection, path) != state:
                    return False
                _store(connection, path.name, new, batch)
            state = new
    return True


class _State(NamedTuple):
    """How far the index has read one file."""

    num_bytes: int
    resume_at: int
    """Where the last chunk begins."""
    damaged: int | None
    """When a file with damaged lines was last written to, in nanoseconds; None without damaged
    lines.
    """
    fingerprint: bytes


def _load_state(connection: sqlite3.Connection, path: Path) -> _State | None:
    question = "SELECT num_bytes, resume_at, damaged, fingerprint FROM files WHERE name = ?"
    found = connection.execute(question, (path.name,)).fetchone()
    return _State(*found) if found else None


def _new_state(stream: BinaryIO, state: _State | None, batch: "list[Chunk]") -> _State:
    """Return the state of a file after a batch of chunks."""
    end = batch[-1].end
    resume_at = batch[-1].start
    has_damage = any(chunk.num_bad for chunk in batch) or (
        state is not None and state.damaged is not None
    )
    damaged = os.fstat(stream.fileno()).st_mtime_ns if has_damage else None
    return _State(end, resume_at, damaged, _fingerprint(stream, end, resume_at))


def _is_changed(stream: BinaryIO, state: _State) -> bool:
    """Return whether a file differs from what was indexed. One that had damaged lines, and was
    written to since, may be mended.
    """
    status = os.fstat(stream.fileno())
    if status.st_size == state.num_bytes and state.damaged not in (None, status.st_mtime_ns):
        return True
    return _fingerprint(stream, state.num_bytes, state.resume_at) != state.fingerprint


def _fingerprint(stream: BinaryIO, num_bytes: int, resume_at: int) -> bytes:
    """Return a fingerprint of a state: its numbers, and the first and last bytes of the first
    `num_bytes`.

    A shorter file has a different one. The stream position is restored.
    """
    position = stream.tell()
    size = os.fstat(stream.fileno()).st_size
    digest = hashlib.blake2b(b"%d %d" % (min(num_bytes, size), resume_at), digest_size=16)
    for start in (0, max(num_bytes - _FINGERPRINT_BYTES, 0)):
        stream.seek(start)
        digest.update(stream.read(min(_FINGERPRINT_BYTES, num_bytes - start)))
    stream.seek(position)
    return digest.digest()


class Chunk(NamedTuple):
    """Consecutive records of one file."""

    start: int
    """Byte offset of the first line."""
    end: int
    """Byte offset after the last line."""
    num_bad: int
    """Number of lines in between that are not records."""
    offsets: Integers
    columns: Columns


class _Record(msgspec.Struct, gc=False):
    """The part of a record that the index stores."""

    step: Any = None
    data: Any = None


_decoder: Final = msgspec.json.Decoder(_Record)


def read_chunks(scanner: LineScanner, file: BinaryIO) -> Iterator[Chunk]:
    """Yield the complete lines from `scanner.offset` to the end of the file as chunks; all but the
    last are full.
    """
    blocks = scanner.blocks(file)
    while True:
        start = scanner.offset
        num_bad = scanner.num_bad
        columns = Columns()
        offsets: list[int] = []
        for block in blocks:
            offsets += _add_block(columns, scanner, block)
            if len(offsets) >= CHUNK_RECORDS or scanner.offset - start >= CHUNK_BYTES:
                break
        if scanner.offset == start:
            return
        yield Chunk(
            start, scanner.offset, scanner.num_bad - num_bad, np.array(offsets, np.int64), columns
        )


def _add_block(columns: Columns, scanner: LineScanner, block: bytes) -> list[int]:
    """Add the records of a block of lines, which begins at `scanner.offset`; return where each of
    them begins.
    """
    # The typed decoder is twice as fast because it skips what the index does not store, without
    # checking it. In printable ASCII without escapes there is nothing to overlook.
    num_control = np.count_nonzero(np.frombuffer(block, np.uint8) < ord(" "))
    is_plain = block.isascii() and b"\\" not in block and num_control == block.count(b"\n")
    plain = decode_block(_decoder, block) if is_plain else None
    if plain is not None:
        steps = [record.step for record in plain]
        data = [record.data for record in plain]
        columns.add(steps, data, decoded=False)
        *offsets, scanner.offset = accumulate(
            [len(line) + 1 for line in block.split(b"\n")], initial=scanner.offset
        )
        return offsets
    parsed = [
        (offset, parse_line(scanner, offset, line)) for offset, line in scanner.lines_of(block)
    ]
    found = {offset: record for offset, record in parsed if record is not None}
    steps, data = ([record.get(name) for record in found.values()] for name in ("step", "data"))
    columns.add(steps, data, decoded=True)
    return list(found)


def _store(connection: sqlite3.Connection, file: str, state: _State, batch: list[Chunk]) -> None:
    connection.execute(
        """INSERT INTO files (name, num_bytes, resume_at, damaged, fingerprint)
           VALUES (?, ?, ?, ?, ?)
           ON CONFLICT (name) DO UPDATE SET
           num_bytes = excluded.num_bytes, resume_at = excluded.resume_at,
           damaged = excluded.damaged, fingerprint = excluded.fingerprint""",
        (file, *state),
    )
    connection.execute(
        "DELETE FROM columns WHERE file = ? AND first_byte >= ?", (file, batch[0].start)
    )
    for chunk in batch:
        rows = []
        for name, (where, numbers) in _columns(chunk).items():
            # Most metrics are in every record of a chunk.
            places = None if where is None or len(where) == len(chunk.offsets) else where.tobytes()
            row = (file, name, chunk.start, len(numbers), places, numbers.tobytes())
            rows.append((*row, row_crc(*row)))
        connection.executemany("INSERT INTO columns VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _columns(chunk: Chunk) -> dict[str, tuple[npt.NDArray[Any] | None, npt.NDArray[Any]]]:
    """Return the columns of a chunk by name: the records they belong to, None for all, and the
    numbers.
    """
    steps = chunk.columns.steps
    known = steps[steps[:, 0] != NO_STEP, 0]
    low, high = (known.min(), known.max()) if known.size else (NO_STEP, NO_STEP)
    about = np.array([len(steps), chunk.num_bad, low, high], np.int64)
    columns = {ABOUT: (None, about), "step": (None, steps), OFFSET: (None, chunk.offsets)}
    # Lone surrogates are escaped, because SQLite accepts only UTF-8.
    spelled = {
        name.encode(errors="backslashreplace").decode(): name
        for name in sorted(chunk.columns.names)
    }
    return columns | {
        f"{DATA}{text}": chunk.columns.numbers(name) for text, name in spelled.items()
    }
