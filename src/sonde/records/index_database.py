"""The SQLite database of the index: its tables, opening it in whatever state the file is, and updating it.

A row per value would be far too many. The index stores chunks of up to 16384 consecutive lines, or 16 MB of them, as
arrays (columns.py): where each record starts, its step, and for each metric the numbers and their records. Memory is
bounded by one chunk, whatever the file's size. Costs 5 µs of CPU for a record of ten numbers (benchmarks/records.py).

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
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
import numpy as np
from zlib_ng.zlib_ng import crc32

from sonde.records.columns import Columns, Integers
from sonde.records.files import open_regular
from sonde.records.layout import RecordFileName
from sonde.records.reader import LineScanner, parse_line
from sonde.records.seal import are_intact
from sonde.records.values import NO_STEP

CHUNK_RECORDS: Final = 16384
CHUNK_BYTES: Final = 16 << 20
"""A chunk ends at the first line that takes it past this many bytes, because records may be long."""
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
    is_full = num_records >= CHUNK_RECORDS or chunk_bytes >= CHUNK_BYTES
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


_decode_plain: Final = msgspec.json.Decoder(_Record).decode


def read_chunks(scanner: LineScanner, file: BinaryIO) -> Iterator[Chunk]:
    """Yield the complete lines from `scanner.offset` to the end of the file as chunks; all but the last are full."""
    lines = scanner.lines(file)
    exhausted = False
    while not exhausted:
        start, num_bad = scanner.offset, scanner.num_bad
        offsets: list[int] = []
        batch: list[bytes] = []
        exhausted = True
        for offset, line in lines:
            offsets.append(offset)
            batch.append(line)
            if len(batch) >= CHUNK_RECORDS or scanner.offset - start >= CHUNK_BYTES:
                exhausted = False
                break
        if scanner.offset == start:
            return
        columns = Columns()
        records = _decode_together(batch)
        if records is not None:
            columns.add([one.step for one in records], [one.data for one in records], decoded=False)
        else:
            parsed = [parse_line(scanner, offset, line) for offset, line in zip(offsets, batch, strict=True)]
            offsets = [offset for offset, one in zip(offsets, parsed, strict=True) if one is not None]
            found = [one for one in parsed if one is not None]
            columns.add([one.get("step") for one in found], [one.get("data") for one in found], decoded=True)
        yield Chunk(start, scanner.offset, scanner.num_bad - num_bad, np.array(offsets, np.int64), columns)


def _decode_together(lines: list[bytes]) -> list[_Record] | None:
    """Return the records of plain lines; None if any line is unusual."""
    # The typed decoder is twice as fast because it skips what the index does not store, without checking it. In
    # printable ASCII without escapes there is nothing to overlook; "$" may begin one of our encodings.
    whole = b"".join(lines)
    codes = np.frombuffer(whole, np.uint8)
    is_plain = codes.size and codes.min() >= ord(" ") and codes.max() <= ord("~")
    if not is_plain or b"$" in whole or b"\\" in whole or not are_intact(lines):
        return None
    try:
        return list(map(_decode_plain, lines))
    except (ValueError, RecursionError):
        return None


def _store(connection: sqlite3.Connection, file: RecordFileName, batch: list[Chunk], seen: tuple[bytes, int]) -> None:
    connection.execute(
        """INSERT INTO files (name, kind, rank, num_bytes, fingerprint, modified) VALUES (?, ?, ?, ?, ?, ?)
           ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, rank = excluded.rank,
           num_bytes = excluded.num_bytes, fingerprint = excluded.fingerprint, modified = excluded.modified""",
        (file.path.name, file.kind, file.rank, batch[-1].end, *seen),
    )
    (file_id,) = connection.execute("SELECT id FROM files WHERE name = ?", (file.path.name,)).fetchone()
    connection.execute("DELETE FROM chunks WHERE file = ? AND first_byte >= ?", (file_id, batch[0].start))
    for chunk in batch:
        # Lone surrogates are escaped, because SQLite accepts only UTF-8.
        stored = {name: name.encode(errors="backslashreplace").decode() for name in sorted(chunk.columns.names)}
        rows = [(name, row_crc(name)) for name in stored.values()]
        connection.executemany("INSERT OR IGNORE INTO metrics (name, crc) VALUES (?, ?)", rows)
        chunk_id = _store_chunk(connection, file_id, chunk)
        found = []
        for name, spelled in stored.items():
            where, numbers = chunk.columns.numbers(name)
            # Most metrics are in every record of a chunk.
            blob = None if len(where) == len(chunk.offsets) else where.tobytes()
            row = (chunk_id, file_id, len(numbers), blob, numbers.tobytes())
            found.append((*row, row_crc(spelled, *row), spelled))
        connection.executemany(
            """INSERT OR REPLACE INTO columns (chunk, metric, file, num_values, rows, numbers, crc)
               SELECT ?, id, ?, ?, ?, ?, ? FROM metrics WHERE name = ?""",
            found,
        )


def _store_chunk(connection: sqlite3.Connection, file_id: int, chunk: Chunk) -> int:
    all_steps = chunk.columns.steps
    num_records, width = all_steps.shape
    known = all_steps[all_steps[:, 0] != NO_STEP, 0]
    low, high = (int(known.min()), int(known.max())) if known.size else (None, None)
    about = (file_id, chunk.start, chunk.end - chunk.start, num_records, chunk.num_bad, low, high)
    steps, offsets = (width, all_steps.tobytes()), chunk.offsets.tobytes()
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
