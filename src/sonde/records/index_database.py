"""The SQLite database of the index: its tables, opening it in whatever state the file is, and updating it.

The file can always be rebuilt from the record files, so nothing here tries to repair it: a damaged file, a foreign
database or one of another version is deleted and recreated. If the file cannot be used at all (a read-only directory, a
full disk, a lock held by another process), the caller gets an in-memory database. The tables are described in
docs/formats/index.md.

Only what was appended to a record file is read. For each file, the index stores how many bytes it has read and a
fingerprint of their first and last 4 kB. While that matches, reading resumes after the last chunk if it was full;
otherwise the last chunk is read again and replaced, so that chunks stay few. A truncated or replaced file is indexed
from its start, and so is one with damaged lines that was written to and did not grow: it may have been mended.

Files are read and parsed outside any transaction. Writing takes one short transaction per eight chunks, which first
checks that no other process has updated the file's state. So two processes may update at once without waiting for each
other's parsing, and a killed one leaves what it had committed.
"""

import contextlib
import functools
import hashlib
import os
import sqlite3
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from sonde.records import index_chunk
from sonde.records.files import open_regular
from sonde.records.index_chunk import NO_STEP, Chunk, read_chunks
from sonde.records.layout import RecordFileName
from sonde.records.reader import LineScanner

_CHUNKS_PER_TRANSACTION: Final = 8
_FINGERPRINT_BYTES: Final = 4096
_BLOCK_BYTES: Final = 1 << 20
_BUSY_SECONDS: Final = 30.0
_CHECKED_BYTES: Final = 4 << 20
_SIZE: Final = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
_PAGE_BYTES: Final = 16384  # a column of 128 kB is read in half the CPU time of SQLite's default of 4096

# Increase the version with every change of what counts as a metric: an index with other tables or texts is rebuilt.
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS files ( -- index of sonde, version 4
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, rank INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL, fingerprint BLOB NOT NULL, modified INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS chunks (
    id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES files ON DELETE CASCADE,
    first_byte INTEGER NOT NULL, num_bytes INTEGER NOT NULL, num_records INTEGER NOT NULL, num_bad INTEGER NOT NULL,
    step_low INTEGER, step_high INTEGER, crc INTEGER NOT NULL, step_width INTEGER NOT NULL, steps BLOB NOT NULL,
    steps_crc INTEGER NOT NULL, offsets BLOB NOT NULL, offsets_crc INTEGER NOT NULL, UNIQUE (file, first_byte)
);
CREATE TABLE IF NOT EXISTS metrics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS columns (
    chunk INTEGER NOT NULL REFERENCES chunks ON DELETE CASCADE, metric INTEGER NOT NULL REFERENCES metrics,
    file INTEGER NOT NULL, num_values INTEGER NOT NULL, rows BLOB, numbers BLOB NOT NULL, crc INTEGER NOT NULL,
    UNIQUE (chunk, metric)
);
CREATE INDEX IF NOT EXISTS columns_by_metric ON columns (metric, file, chunk, num_values);
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
        try:
            return _connect(path)
        except sqlite3.OperationalError:
            break
        except sqlite3.DatabaseError:
            discard_database(path)
    return memory_database()


def memory_database() -> sqlite3.Connection:
    """Return an empty in-memory database."""
    return _connect(":memory:")


def discard_database(path: Path) -> None:
    """Delete the file and what SQLite may have left beside it, if permitted."""
    for one in _files(path):
        with contextlib.suppress(OSError):
            one.unlink()


def _files(path: Path) -> list[Path]:
    """Return the database path and those of the files that SQLite may leave beside it."""
    return [path.with_name(f"{path.name}{ending}") for ending in ("", "-journal", "-wal", "-shm")]


def _connect(place: Path | str) -> sqlite3.Connection:
    connection = sqlite3.connect(place, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
        if not _schema(connection):
            connection.executescript(f"PRAGMA page_size = {_PAGE_BYTES}; BEGIN IMMEDIATE; {_TABLES} COMMIT;")
        # A foreign view or trigger could run for any length of time when queried.
        if _schema(connection) != _own_schema():
            raise sqlite3.DatabaseError("not an index of this version")
        # SQLite can find a row that is missing, which row checksums cannot, at 2 ms per megabyte.
        (num_bytes,) = connection.execute(_SIZE).fetchone()
        if num_bytes <= _CHECKED_BYTES and connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("the index is damaged")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _schema(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute("SELECT name, coalesce(sql, '') FROM sqlite_master ORDER BY name").fetchall()


@functools.cache
def _own_schema() -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_TABLES)
        return _schema(connection)


def update(connection: sqlite3.Connection, files: list[RecordFileName]) -> None:
    """Update the index to what `files` contain now, and drop all other files."""
    names = {file.path.name for file in files}
    gone = [name for (name,) in connection.execute("SELECT name FROM files") if name not in names]
    if gone:
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
        if state is not None and _is_changed(stream, state):
            with connection:  # commits at its end, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                if _load_state(connection, file) != state:
                    return False
                connection.execute("DELETE FROM files WHERE id = ?", (state.file,))
            state = None
        if not _has_line(stream, state.num_bytes if state else 0):
            return True
        chunks = read_chunks(LineScanner(file.path, offset=state.resume_at if state else 0), stream)
        while batch := list(islice(chunks, _CHUNKS_PER_TRANSACTION)):
            seen = _fingerprint(stream, batch[-1].end), os.fstat(stream.fileno()).st_mtime_ns
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                if _load_state(connection, file) != state:
                    return False
                _store(connection, file, batch, seen)
                state = _load_state(connection, file)
    return True


def _load_state(connection: sqlite3.Connection, file: RecordFileName) -> "_State | None":
    found = connection.execute(
        """SELECT files.id, files.num_bytes, fingerprint, modified,
           EXISTS (SELECT 1 FROM chunks WHERE file = files.id AND num_bad > 0), first_byte, chunks.num_bytes, num_records
           FROM files JOIN chunks ON chunks.file = files.id WHERE name = ? AND kind = ? AND rank = ? ORDER BY first_byte DESC LIMIT 1""",
        (file.path.name, file.kind, file.rank),
    ).fetchone()
    if found is None:
        return None
    file_id, num_bytes, fingerprint, modified, has_damage, first_byte, chunk_bytes, num_records = found
    is_full = num_records >= index_chunk.CHUNK_RECORDS or chunk_bytes >= index_chunk.CHUNK_BYTES
    resume_at = num_bytes if is_full else first_byte
    return _State(file_id, num_bytes, fingerprint, modified, bool(has_damage), resume_at)


def _is_changed(stream: BinaryIO, state: "_State") -> bool:
    """Return whether a file differs from what was indexed. One that had damaged lines, and was written to since, may be mended."""
    status = os.fstat(stream.fileno())
    if state.has_damage and status.st_size == state.num_bytes and status.st_mtime_ns != state.modified:
        return True
    return _fingerprint(stream, state.num_bytes) != state.fingerprint


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


def _store(connection: sqlite3.Connection, file: RecordFileName, batch: list[Chunk], seen: tuple[bytes, int]) -> None:
    connection.execute(
        """INSERT INTO files (name, kind, rank, num_bytes, fingerprint, modified) VALUES (?, ?, ?, ?, ?, ?)
           ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, rank = excluded.rank,
           num_bytes = excluded.num_bytes, fingerprint = excluded.fingerprint, modified = excluded.modified""",
        (file.path.name, file.kind, file.rank, batch[-1].end, *seen),
    )
    (file_id,) = connection.execute("SELECT id FROM files WHERE name = ?", (file.path.name,)).fetchone()
    connection.execute("DELETE FROM chunks WHERE file = ? AND first_byte >= ?", (file_id, batch[0].start))
    rows = [(name, row_crc(name)) for name in sorted({name for chunk in batch for name in chunk.columns})]
    connection.executemany("INSERT OR IGNORE INTO metrics (name, crc) VALUES (?, ?)", rows)
    for chunk in batch:
        chunk_id = _store_chunk(connection, file_id, chunk)
        found = []
        for name, (where, numbers) in chunk.columns.items():
            # Most metrics are in every record of a chunk.
            blob = None if len(where) == len(chunk.offsets) else where.tobytes()
            row = (chunk_id, file_id, len(numbers), blob, numbers.tobytes())
            found.append((*row, row_crc(name, *row), name))
        connection.executemany(
            """INSERT INTO columns (chunk, metric, file, num_values, rows, numbers, crc)
               SELECT ?, id, ?, ?, ?, ?, ? FROM metrics WHERE name = ?""",
            found,
        )


def _store_chunk(connection: sqlite3.Connection, file_id: int, chunk: Chunk) -> int:
    num_records, width = chunk.steps.shape
    known = chunk.steps[chunk.steps[:, 0] != NO_STEP, 0]
    low, high = (int(known.min()), int(known.max())) if known.size else (None, None)
    about = (file_id, chunk.start, chunk.end - chunk.start, num_records, chunk.num_bad, low, high)
    steps, offsets = (width, chunk.steps.tobytes()), chunk.offsets.tobytes()
    row = connection.execute(
        """INSERT INTO chunks (file, first_byte, num_bytes, num_records, num_bad, step_low, step_high, crc,
           step_width, steps, steps_crc, offsets, offsets_crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (*about, row_crc(*about), *steps, row_crc(*steps), offsets, row_crc(offsets)),
    )
    assert row.lastrowid is not None
    return row.lastrowid


class _State(NamedTuple):
    """How far the index has read one file."""

    file: int
    num_bytes: int
    fingerprint: bytes
    modified: int
    """When the file was last written to, in nanoseconds."""
    has_damage: bool
    """Whether lines of it were no records."""
    resume_at: int
