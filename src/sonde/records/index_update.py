"""Bringing the index up to date with a record file: only what was appended is read.

The index remembers, for each file, how many bytes it has taken in and a fingerprint of their first and last 4 kB. As long
as that still fits, reading resumes at the last chunk when it was not full (it is read again and replaced, so that chunks
stay few), and after it when it was. A file that was truncated or replaced is indexed from its start.

Files are read and parsed outside any transaction; writing takes one short transaction for eight chunks, which first
checks that no other process has moved the file's state on. So two processes may do this at once, and neither waits for
the other's parsing; one that is killed leaves what it had committed.
"""

import hashlib
import os
import sqlite3
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, Final, final

from sonde.records import index_chunk
from sonde.records.files import open_regular
from sonde.records.index_chunk import NO_STEP, Chunk, Column, even_steps, read_chunks
from sonde.records.index_database import row_crc, transaction
from sonde.records.layout import RecordFileName
from sonde.records.reader import LineScanner

_CHUNKS_PER_TRANSACTION: Final = 8
_FINGERPRINT_BYTES: Final = 4096
_BLOCK_BYTES: Final = 1 << 20


def update(connection: sqlite3.Connection, files: list[RecordFileName]) -> None:
    """Make the index say what `files` hold now, and nothing of other files."""
    names = {file.path.name for file in files}
    gone = [name for (name,) in connection.execute("SELECT name FROM files") if name not in names]
    if gone:
        with transaction(connection):
            connection.executemany("DELETE FROM files WHERE name = ?", [(name,) for name in gone])
    for file in files:
        while not _update_file(connection, file):
            pass  # another process was at it: go on from where that one is


def _update_file(connection: sqlite3.Connection, file: RecordFileName) -> bool:
    """False when another process changed the file's state meanwhile."""
    state = _load_state(connection, file)
    try:
        stream = open_regular(file.path)
    except FileNotFoundError:
        return True  # deleted since it was listed: the next refresh forgets it
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
    return _State(
        file=file_id,
        num_bytes=num_bytes,
        fingerprint=fingerprint,
        resume_at=num_bytes if is_full else first_byte,
    )


def _fingerprint(stream: BinaryIO, num_bytes: int) -> bytes:
    """Of the first and last bytes of the first `num_bytes`; that of a shorter file differs. Leaves the position be."""
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
    """Does a line end after `offset`? What is torn, or still being written, is left for later."""
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
            [(*row, column.name) for column in chunk.columns for row in [_column_row(column, chunk_id, file_id)]],
        )
        connection.executemany(
            "INSERT INTO marks (chunk, field, text, rows, crc) VALUES (?, ?, ?, ?, ?)",
            [
                (*row, row_crc(*row))
                for row in [(chunk_id, mark.field, mark.text, _blob(mark.rows)) for mark in chunk.marks]
            ],
        )


def _column_row(column: Column, chunk_id: int, file_id: int) -> tuple[object, ...]:
    rows, numbers = _blob(column.rows), _blob(column.numbers)
    return (
        *(chunk_id, file_id, len(column.numbers), rows, numbers),
        row_crc(column.name, chunk_id, file_id, len(column.numbers), rows, numbers),
    )


def _store_chunk(connection: sqlite3.Connection, file_id: int, chunk: Chunk) -> int:
    num_records, width = chunk.steps.shape
    known = chunk.steps[chunk.steps[:, 0] != NO_STEP, 0]
    low, high = (int(known.min()), int(known.max())) if known.size else (None, None)
    # Steps that rise evenly, as those of most runs do, need no storing.
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


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """How far the index has come with one file."""

    file: int
    num_bytes: int
    fingerprint: bytes
    resume_at: int
