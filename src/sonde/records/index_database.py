"""The SQLite database of the index: its tables, and opening it whatever state the file is in.

The file can always be rebuilt from the record files, so nothing here tries to rescue one: a damaged file, a database
that is not ours and one of another version are deleted and begun anew. Where the file cannot be used at all (a read-only
directory, a full disk, another process that keeps it locked) the caller gets a database in memory. The tables are
described in docs/formats/index.md.
"""

import contextlib
import functools
import os
import sqlite3
from binascii import crc32
from collections.abc import Iterator
from pathlib import Path
from typing import Final

VERSION: Final = 2
"""Raise it with every change of the tables or of what a metric is: an index of another version is rebuilt."""

_APPLICATION_ID: Final = 0x736F6E64  # "sond", in the header of the file
_BUSY_SECONDS: Final = 30.0
_CHECKED_BYTES: Final = 4 << 20
_SIZE: Final = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
_PAGE_BYTES: Final = 16384  # a column of 128 kB is read in half the CPU time of SQLite's own 4096

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
    """The checksum that a row keeps of its own fields: numbers, text and arrays of bytes."""
    crc = 0
    for one in fields:
        crc = crc32(one if isinstance(one, (bytes, memoryview)) else repr(one).encode(), crc)
    return crc


def check_row(crc: int, *fields: object) -> None:
    """Raise as SQLite does for a damaged file when a row is not as it was written: the index is then built anew."""
    if row_crc(*fields) != crc:
        raise sqlite3.DatabaseError("a row of the index is damaged")


def open_database(path: Path) -> sqlite3.Connection:
    """The database at `path`, made or made anew where needed; one in memory when the file cannot be used.

    What stands there and is no regular file is left alone: a link would let whoever made the run write elsewhere.
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
    """An empty database that no one else sees."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _prepare(connection)
    return connection


def discard_database(path: Path) -> None:
    """Delete the file and what SQLite may have left beside it; where that is not allowed, leave it."""
    for one in _files(path):
        with contextlib.suppress(OSError):
            one.unlink()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, and alone: others wait, so that what is read inside stays true until the end."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back when the disk is full
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _files(path: Path) -> list[Path]:
    """The database and what SQLite may leave beside it."""
    return [path.with_name(f"{path.name}{ending}") for ending in ("", "-journal", "-wal", "-shm")]


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    if _is_ours(connection):
        # A view or a trigger of someone else's making would run for as long as it likes when it is asked.
        if _schema(connection) != _own_schema():
            raise sqlite3.DatabaseError("not an index of this version")
        # What the checksums of rows cannot tell, a row that is not found any more, SQLite can, at 2 ms a megabyte.
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
