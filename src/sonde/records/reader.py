"""Read record files, whatever happened to them.

A torn tail (a writer killed in mid-write, or still writing), NUL blocks (power loss), a byte order
mark, Windows line ends, corrupt or foreign lines, lines with a wrong checksum (seal.py): each is
skipped, counted and located, and the rest is read. Nothing here raises because of a file's
*content*. Memory is bounded by one block and one line.

    reading = read_records(path)
    for record in reading: …
    reading.num_bad, reading.bad_lines, reading.torn_bytes

A `LineScanner` that is used again returns what was appended since; `LogFile` follows live files
with it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from sonde.records.files import open_regular, seek_data
from sonde.records.seal import are_intact, unseal
from sonde.records.values import decode

Record: TypeAlias = dict[str, Any]
"""One decoded record: always a JSON object."""

_BLOCK_BYTES: Final = 1 << 17
"""Small enough to stay in the cache between reading and decoding, and to be allocated without new
pages.
"""
_END_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 32 << 20
"""A longer line is not one of our records (values.MAX_RECORD_BYTES): it is skipped without holding
it in memory.
"""
_MAX_BAD_LINES_KEPT: Final = 100
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_DOLLAR: Final = ord("$")
"""Begins our encodings of unusual values. As a number, which is found much faster than a string of
bytes.
"""
_Line = TypeVar("_Line")


class BadLine(NamedTuple):
    """A line that is not a record."""

    path: Path
    offset: int
    """Byte offset of the line's start in the file."""
    num_bytes: int
    reason: str


class LineScanner:
    """Complete lines of a growing file with their byte offsets; remembers where it stopped and what
    it could not read.

    `lines()` yields what is complete now and may be called again for what has been appended since.
    Iterating yields the records.
    """

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        """Where the next unread line starts: everything before has been yielded or counted."""
        self.torn_bytes = 0
        """Bytes after the last newline at the last scan: a torn line, or one still being
        written.
        """
        self.num_bad = 0
        self.bad_lines: list[BadLine] = []
        """The first hundred bad lines; `num_bad` counts all."""

    def blocks(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield stretches of complete lines from `self.offset` on, without the last newline of
        each.
        """
        file.seek(self.offset)
        self.torn_bytes = 0
        while not self.torn_bytes and (block := file.read(_BLOCK_BYTES)):
            if not block.endswith(b"\n"):
                block += file.readline(MAX_LINE_BYTES)
            num_whole = block.rfind(b"\n") + 1
            end = self.offset + num_whole
            if num_whole:
                yield block[: num_whole - 1]
            self.offset = end
            self.torn_bytes = len(block) - num_whole
            if self.torn_bytes >= MAX_LINE_BYTES:
                self._skip_long_line(file, self.torn_bytes)
                self.torn_bytes = 0

    def lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """Yield the complete, non-empty lines from `self.offset` on, without their newline."""
        for block in self.blocks(file):
            yield from self.lines_of(block)

    def lines_of(self, block: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the non-empty lines of a block that `blocks` returned, with their offsets."""
        for line in block.split(b"\n"):
            start = self.offset
            self.offset += len(line) + 1
            if line and (cleaned := self.clean(start, line)):
                yield start, cleaned

    def __iter__(self) -> Iterator[Record]:
        with open_regular(self.path) as file:
            for offset, line in self.lines(file):
                record = parse_line(self, offset, line)
                if record is not None:
                    yield record
            yield from self._last_line(file)

    def note_bad(self, offset: int, num_bytes: int, reason: str) -> None:
        """Count a line that is not a record."""
        self.num_bad += 1
        if len(self.bad_lines) < _MAX_BAD_LINES_KEPT:
            self.bad_lines.append(BadLine(self.path, offset, num_bytes, reason))

    def clean(self, offset: int, line: bytes) -> bytes:
        """Strip what accidents and other systems leave around a record."""
        if offset == 0:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.startswith(b"\0") or line.endswith(b"\0"):
            # Blocks that the file system allocated but did not fill before power loss; a record may
            # follow them.
            self.note_bad(offset, len(line), "NUL bytes")
            line = line.strip(b"\0")
        return line.strip()

    def _skip_long_line(self, file: BinaryIO, num_bytes: int) -> None:
        start = self.offset
        while True:
            num_bytes = seek_data(file, start + num_bytes) - start
            block = file.read(_BLOCK_BYTES)
            if not block:
                break
            end = block.find(b"\n")
            if end >= 0:
                num_bytes += end + 1
                break
            num_bytes += len(block)
        self.note_bad(start, num_bytes, f"longer than {MAX_LINE_BYTES} bytes")
        self.offset = start + num_bytes
        file.seek(self.offset)

    def _last_line(self, file: BinaryIO) -> Iterator[Record]:
        """Yield a last line without a newline if it is a complete object; a torn object does not
        parse.
        """
        if not 0 < self.torn_bytes <= MAX_LINE_BYTES:
            return
        start = self.offset
        file.seek(start)
        line = file.read(self.torn_bytes)
        try:
            record = decode(unseal(line.strip(b"\0").strip()))
        except ValueError:
            if _has_lost_newline(line):
                self.note_bad(start, len(line), "its newline is damaged")
            return
        if isinstance(record, dict):
            self.offset += self.torn_bytes
            self.torn_bytes = 0
            yield record


def has_damaged_end(path: Path) -> bool:
    """Is the newline after the last record of a file damaged? Readers of whole lines never get to
    see that record.
    """
    with open_regular(path) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _END_BYTES, 0))
        return _has_lost_newline(file.read().rpartition(b"\n")[2])


def _has_lost_newline(tail: bytes) -> bool:
    """Is this a whole record and one byte more? A torn line is the beginning of a record, and has
    nothing after its end.
    """
    try:
        return len(unseal(tail[:-1])) < len(tail) - 1
    except ValueError:
        return False


def damage_text(num_bad: int) -> str:
    """Return the standard text for unreadable lines, such as "3 damaged lines"; empty if there are
    none.
    """
    if num_bad == 0:
        return ""
    return "1 damaged line" if num_bad == 1 else f"{num_bad:,} damaged lines"


def read_records(path: Path | str, *, offset: int = 0) -> LineScanner:
    """Return the records of a file, from byte `offset` on, which must be the start of a line.

    ```python
    from sonde import Run
    from sonde.records import read_records

    with Run("runs/mine") as run:
        run.logger.log(1, {"loss": 4.5})
        path = run.layout.record_file("log", 0)
    assert [record["data"] for record in read_records(path)] == [{"loss": 4.5}]
    ```
    """
    return LineScanner(Path(path), offset=offset)


def read_record_at(path: Path, offset: int) -> Record | None:
    """Return the record whose line starts at `offset`, or None."""
    with open_regular(path) as file:
        file.seek(offset)
        line = file.readline(MAX_LINE_BYTES)
    scanner = LineScanner(path)
    return parse_line(scanner, offset, scanner.clean(offset, line.rstrip(b"\n")))


def newest_records(path: Path, *, num_bytes: int = 1 << 16) -> Iterator[Record]:
    """Yield the complete records in the last `num_bytes` of a file, newest first, decoding each on
    demand.
    """
    with open_regular(path, buffering=0) as file:
        start = max(os.fstat(file.fileno()).st_size - num_bytes, 0)
        file.seek(start)
        lines = file.read(num_bytes).split(b"\n")
    scanner = LineScanner(path)
    for line in reversed(lines[1 if start else 0 :]):
        if line and (record := parse_line(scanner, start, scanner.clean(start, line))) is not None:
            yield record


def decode_block(decoder: "msgspec.json.Decoder[_Line]", block: bytes) -> list[_Line] | None:
    """Decode a block of lines at once. Return None if any line is damaged, empty, unusual or not
    what is decoded.
    """
    lines = block.split(b"\n")
    try:
        found = decoder.decode_lines(block)
    except (ValueError, RecursionError):
        return None
    # Two objects on one line are no record.
    return (
        found if len(found) == len(lines) and _DOLLAR not in block and are_intact(lines) else None
    )


def parse_line(scanner: LineScanner, offset: int, line: bytes) -> Record | None:
    """Return the record on `line`, or None after noting with `scanner` why it is not one."""
    try:
        record = decode(unseal(line))
    except ValueError as error:
        scanner.note_bad(offset, len(line), f"not JSON, or not as it was written: {error}")
        return None
    if not isinstance(record, dict):
        scanner.note_bad(offset, len(line), "not a JSON object")
        return None
    return record
