"""The SQLite database of the index: its tables, opening it in whatever state the file is, and updating it.

The file can always be rebuilt from the record files, so nothing here tries to repair it: a damaged file, a foreign
database or one of another version is deleted and recreated. If the file cannot be used at all (a read-only directory, a
full disk, a lock held by another process), the caller gets an in-memory database. The tables are described in
docs/formats/index.md.

Only what was appended to a record file is read. For each file, the index stores how many bytes it has read and a
fingerprint of their first and last 4 kB. While that matches, reading resumes after the last chunk if it was full;
otherwise the last chunk is read again and replaced, so that chunks stay few. A truncated or replaced file is indexed
from its start.

Files are read and parsed outside any transaction. Writing takes one short transaction per eight chunks, which first
checks that no other process has updated the file's state. So two processes may update at once without waiting for each
other's parsing, and a killed one leaves what it had committed.
"""

import contextlib
import functools
import hashlib
import os
import sqlite3
from binascii import crc32
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from sonde.records import index_chunk
from sonde.records.files import open_regular
from sonde.records.index_chunk import NO_STEP, Chunk, even_steps, read_chunks
from sonde.records.layout import RecordFileName
from sonde.records.reader import LineScanner

VERSION: Final = 2
"""Increase it with every change of the tables or of what counts as a metric: an index of another version is rebuilt."""

_CHUNKS_PER_TRANSACTION: Final = 8
_FINGERPRINT_BYTES: Final = 4096
_BLOCK_BYTES: Final = 1 << 20
_APPLICATION_ID: Final = 0x736F6E64  # "sond", in the header of the file
_BUSY_SECONDS: Final = 30.0
_CHECKED_BYTES: Final = 4 << 20
_SIZE: Final = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
_PAGE_BYTES: Final = 16384  # a column of 128 kB is read in half the CPU time of SQLite's default of 4096

_TABLES: Final = """
CREATE TABLE files (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, rank INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL, fingerprint BLOB NOT NULL
);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES files ON DELETE CASCADE,
    first_byte INTEGER NOT NULL, num_bytes INTEGER NOT NULL, num_records INTEGER NOT NULL, num_bad INTEGER NOT NULL,
    step_width INTEGER NOT NULL, step_low INTEGER, step_high INTEGER, steps BLOB, offsets BLOB NOT NULL,
    steps_crc INTEGER NOT NULL, offsets_crc INTEGER NOT NULL,
    UNIQUE (file, first_byte)
);
CREATE TABLE metrics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL);
CREATE TABLE columns (
    chunk INTEGER NOT NULL REFERENCES chunks ON DELETE CASCADE, metric INTEGER NOT NULL REFERENCES metrics,
    file INTEGER NOT NULL, num_values INTEGER NOT NULL, rows BLOB, numbers BLOB NOT NULL, crc INTEGER NOT NULL,
    UNIQUE (chunk, metric)
);
CREATE INDEX columns_by_metric ON columns (metric, file, chunk, num_values);
CREATE TABLE marks (
    chunk INTEGER NOT NULL REFERENCES chunks ON DELETE CASCADE, field TEXT NOT NULL, text TEXT NOT NULL, rows BLOB,
    crc INTEGER NOT NULL, UNIQUE (chunk, field, text)
);
CREATE INDEX marks_by_text ON marks (field, text, chunk);
"""


def row_crc(*fields: object) -> int:
    """Return the checksum that a row stores of its own fields: numbers, text and byte arrays."""
    crc = 0
    for one in fields:
        crc = crc32(one if isinstance(one, (bytes, memoryview)) else repr(one).encode(), crc)
    return crc


def check_row(crc: int, *fields: object) -> None:
    """Raise what SQLite raises for a damaged file if a row is not as written; the index is then rebuilt."""
    if row_crc(*fields) != crc:
        raise sqlite3.DatabaseError("a row of the index is damaged")


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database at `path`, creating or recreating it if needed; in memory if the file cannot be used.

    Anything there that is not a regular file is left alone: a link would let whoever made the run write elsewhere.
    """
    if any(os.path.lexists(one) and (one.is_symlink() or not one.is_file()) for one in _files(path)):
        return memory_database()
    for _ in range(2):
        connection = None
        try:
            connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
            _prepare(connection)
            return connection
        except sqlite3.OperationalError:
            _close(connection)
            break
        except sqlite3.DatabaseError:
            _close(connection)
            discard_database(path)
    return memory_database()


def memory_database() -> sqlite3.Connection:
    """Return an empty in-memory database."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _prepare(connection)
    return connection


def discard_database(path: Path) -> None:
    """Delete the file and what SQLite may have left beside it, if permitted."""
    for one in _files(path):
        with contextlib.suppress(OSError):
            one.unlink()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one exclusive transaction: what is read inside stays true until its end."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back when the disk is full
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _files(path: Path) -> list[Path]:
    """Return the database path and those of the files that SQLite may leave beside it."""
    return [path.with_name(f"{path.name}{ending}") for ending in ("", "-journal", "-wal", "-shm")]


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    if _is_ours(connection):
        # A foreign view or trigger could run for any length of time when queried.
        if _schema(connection) != _own_schema():
            raise sqlite3.DatabaseError("not an index of this version")
        # SQLite can find a row that is missing, which row checksums cannot, at 2 ms per megabyte.
        (num_bytes,) = connection.execute(_SIZE).fetchone()
        if num_bytes <= _CHECKED_BYTES and connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("the index is damaged")
        return
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    with transaction(connection):
        if _is_ours(connection):
            return  # another process was first
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise sqlite3.DatabaseError("not an index of this version")
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _schema(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute("SELECT name, coalesce(sql, '') FROM sqlite_master ORDER BY name").fetchall()


@functools.cache
def _own_schema() -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_TABLES)
        return _schema(connection)


def _is_ours(connection: sqlite3.Connection) -> bool:
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    return found == [_APPLICATION_ID, VERSION]


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        connection.close()


def update(connection: sqlite3.Connection, files: list[RecordFileName]) -> None:
    """Update the index to what `files` contain now, and drop all other files."""
    names = {file.path.name for file in files}
    gone = [name for (name,) in connection.execute("SELECT name FROM files") if name not in names]
    if gone:
        with transaction(connection):
            connection.executemany("DELETE FROM files WHERE name = ?", [(name,) for name in gone])
    for file in files:
        while not _update_file(connection, file):
            pass  # another process is updating it: continue from its state


def _update_file(connection: sqlite3.Connection, file: RecordFileName) -> bool:
    """Update one file. Return False if another process changed its state meanwhile."""
    state = _load_state(connection, file)
    try:
        stream = open_regular(file.path)
    except FileNotFoundError:
        return True  # deleted since it was listed: the next refresh drops it
    with stream:
        if state is not None and _fingerprint(stream, state.num_bytes) != state.fingerprint:
            with transaction(connection):
                if _load_state(connection, file) != state:
                    return False
                connection.execute("DELETE FROM files WHERE id = ?", (state.file,))
            state = None
        if not _has_line(stream, state.num_bytes if state else 0):
            return True
        chunks = read_chunks(LineScanner(file.path, offset=state.resume_at if state else 0), stream)
        while batch := list(islice(chunks, _CHUNKS_PER_TRANSACTION)):
            fingerprint = _fingerprint(stream, batch[-1].end)
            with transaction(connection):
                if _load_state(connection, file) != state:
                    return False
                _store(connection, file, batch, fingerprint)
                state = _load_state(connection, file)
    return True


def _load_state(connection: sqlite3.Connection, file: RecordFileName) -> "_State | None":
    found = connection.execute(
        """SELECT files.id, files.num_bytes, fingerprint, first_byte, chunks.num_bytes, num_records
           FROM files JOIN chunks ON chunks.file = files.id WHERE name = ? AND kind = ? AND rank = ? ORDER BY first_byte DESC LIMIT 1""",
        (file.path.name, file.kind, file.rank),
    ).fetchone()
    if found is None:
        return None
    file_id, num_bytes, fingerprint, first_byte, chunk_bytes, num_records = found
    is_full = num_records >= index_chunk.CHUNK_RECORDS or chunk_bytes >= index_chunk.CHUNK_BYTES
    return _State(file_id, num_bytes, fingerprint, num_bytes if is_full else first_byte)


def _fingerprint(stream: BinaryIO, num_bytes: int) -> bytes:
    """Return a fingerprint of the first and last bytes of the first `num_bytes`; a shorter file has a different one.

    The stream position is restored.
    """
    position = stream.tell()
    digest = hashlib.blake2b(digest_size=16)
    size = os.fstat(stream.fileno()).st_size
    digest.update(min(num_bytes, size).to_bytes(8, "little"))
    for start in (0, max(num_bytes - _FINGERPRINT_BYTES, 0)):
        stream.seek(start)
        digest.update(stream.read(min(_FINGERPRINT_BYTES, num_bytes - start)))
    stream.seek(position)
    return digest.digest()


def _has_line(stream: BinaryIO, offset: int) -> bool:
    """Return whether a line ends after `offset`. A torn or unfinished line is left for later."""
    stream.seek(offset)
    while block := stream.read(_BLOCK_BYTES):
        if b"\n" in block:
            return True
    return False


def _store(connection: sqlite3.Connection, file: RecordFileName, batch: list[Chunk], fingerprint: bytes) -> None:
    connection.execute(
        """INSERT INTO files (name, kind, rank, num_bytes, fingerprint) VALUES (?, ?, ?, ?, ?)
           ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, rank = excluded.rank,
           num_bytes = excluded.num_bytes, fingerprint = excluded.fingerprint""",
        (file.path.name, file.kind, file.rank, batch[-1].end, fingerprint),
    )
    (file_id,) = connection.execute("SELECT id FROM files WHERE name = ?", (file.path.name,)).fetchone()
    connection.execute("DELETE FROM chunks WHERE file = ? AND first_byte >= ?", (file_id, batch[0].start))
    names = {column.name for chunk in batch for column in chunk.columns}
    rows = [(name, row_crc(name)) for name in sorted(names)]
    connection.executemany("INSERT OR IGNORE INTO metrics (name, crc) VALUES (?, ?)", rows)
    for chunk in batch:
        chunk_id = _store_chunk(connection, file_id, chunk)
        connection.executemany(
            """INSERT INTO columns (chunk, metric, file, num_values, rows, numbers, crc)
               SELECT ?, id, ?, ?, ?, ?, ? FROM metrics WHERE name = ?""",
            [
                (*row, row_crc(column.name, *row), column.name)
                for column in chunk.columns
                for row in [(chunk_id, file_id, len(column.numbers), _blob(column.rows), _blob(column.numbers))]
            ],
        )
        connection.executemany(
            "INSERT INTO marks (chunk, field, text, rows, crc) VALUES (?, ?, ?, ?, ?)",
            [
                (*row, row_crc(*row))
                for row in [(chunk_id, mark.field, mark.text, _blob(mark.rows)) for mark in chunk.marks]
            ],
        )


def _store_chunk(connection: sqlite3.Connection, file_id: int, chunk: Chunk) -> int:
    num_records, width = chunk.steps.shape
    known = chunk.steps[chunk.steps[:, 0] != NO_STEP, 0]
    low, high = (int(known.min()), int(known.max())) if known.size else (None, None)
    # Evenly rising steps, as in most runs, need not be stored.
    is_even = (
        low is not None
        and high is not None
        and width == 1
        and high - low < 2**62
        and bool((even_steps(low, high, num_records) == chunk.steps).all())
    )
    steps = (num_records, chunk.num_bad, width, low, high, None if is_even else _blob(chunk.steps))
    offsets = (file_id, chunk.start, chunk.end - chunk.start, _blob(chunk.offsets))
    row = connection.execute(
        """INSERT INTO chunks (num_records, num_bad, step_width, step_low, step_high, steps, steps_crc,
           file, first_byte, num_bytes, offsets, offsets_crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (*steps, row_crc(*steps), *offsets, row_crc(*offsets)),
    )
    assert row.lastrowid is not None
    return row.lastrowid


def _blob(numbers: Any) -> bytes | None:
    return None if numbers is None else numbers.tobytes()


class _State(NamedTuple):
    """How far the index has read one file."""

    file: int
    num_bytes: int
    fingerprint: bytes
    resume_at: int
