"""Append-only JSON Lines files whose writers never raise into the training step.

One record is one `os.write` on an `O_APPEND` descriptor. Once `append` has returned True, the
record survives SIGKILL of the process. Several processes and threads may share a file without
tearing each other's lines (on local file systems; NFS gives no such guarantee). To survive power
loss, call `sync`. The cost is the encoding plus one system call, 2 to 3 µs for ten numbers
(benchmarks/records.py).

If the disk is full, the device fails or the directory is gone, `append` returns False, counts the
loss, reports it once through `logging`, and tries again at the next call. The first record that
succeeds afterwards is preceded by a gap record that says how many were lost, when and why:

    {"type":"GAP","num_lost":3,"errno":28,"reason":"No space left on device",
     "from":1731705600.1,"to":1731705609.8}
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Any, Final

from zlib_ng.zlib_ng import crc32

from sonde.records import disk
from sonde.records.files import WRITABLE, explained
from sonde.records.seal import EIGHT_DIGITS, PADDED_SEAL, SEAL, seal
from sonde.records.values import encode

GAP: Final = "GAP"
"""The `type` of a record that marks where records were lost."""

_BRACE: Final = ord("{")
_NUM_EMPTY: Final = len(b"{}\n")
_STALLED_SECONDS: Final = 0.1
"""Longer than a living process stays between the first and the last page of one write."""
_LOOK_SECONDS: Final = 0.001
"""Seconds between looks at a file whose last line may still be in the making."""
_CHECK_SECONDS: Final = 1.0
"""Seconds between checks whether the file was deleted; a check costs a system call."""
_RETRY_SECONDS: Final = 0.1
"""Minimum seconds between retries on a failing disk, so that failed calls stay cheap."""

_logger = logging.getLogger("sonde")


class RecordFile:
    """One append-only file of records. Safe to share between threads and across fork.

    Opening raises (a run that cannot record should say so before the first step); appending never
    does.
    """

    def __init__(self, path: Path | str, *, gaps: bool = True) -> None:
        """Open or create a file. Without `gaps`, losses are only counted: for formats of others."""
        self._has_gaps = gaps
        # absolute, because the caller may change its working directory
        self.path = Path(path).absolute()
        self.num_lost = 0
        """Number of records that did not reach the file, over the life of this object."""
        # taken only when something is wrong, when a check is due, and to close
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._gap: dict[str, Any] = {}
        """The gap record for what was lost since the last successful write; empty if nothing
        was.
        """
        self._reported = False
        self._num_since_check = 0
        self._next_check = 0.0
        self._next_retry = 0.0
        self._descriptor = -1
        self._identity = (0, 0)
        with explained(f"cannot write records to {self.path}", hint=WRITABLE):
            self._reopen()
        self._next_check = monotonic() + _CHECK_SECONDS

    def append(self, record: object) -> bool:
        """Write one record. Return True if it is in the file, False if it was lost and counted.
        Never raises.
        """
        line = encode(record)
        return self.append_line(line, line[0] == _BRACE and len(line) > _NUM_EMPTY)

    def append_many(self, records: Iterable[object]) -> bool:
        """Write several records with one system call. Return False if any of them were lost and
        counted.
        """
        lines = [seal(encode(record)) for record in records]
        return self._append_carefully(b"".join(lines), len(lines)) if lines else True

    def append_line(self, line: bytes, is_object: bool = True) -> bool:
        """Write one encoded record, newline included. An object, which must have fields, gets its
        checksum.
        """
        if is_object:
            # `seal` inlined: a call would cost as much as the formatting, and a format width twice
            # that.
            body = line[:-2]
            crc = crc32(body)
            line = body + (SEAL if crc >= EIGHT_DIGITS else PADDED_SEAL) % crc
        if monotonic() >= self._next_check:
            return self._append_carefully(line, 1)
        try:
            num_written = disk.write(self._descriptor, line)
            # A short write means that the disk is filling up: writing the rest either succeeds or
            # raises the reason.
            if num_written != len(line):
                disk.write_all(self._descriptor, line[num_written:])
        except OSError as error:
            return self._lose(1, error)
        self._num_since_check += 1
        return True

    def sync(self) -> bool:
        """Sync everything to disk (against power loss; not needed to survive a kill)."""
        try:
            disk.fsync(self._descriptor)
        except OSError as error:
            self._report(f"cannot sync {self.path}: {error.strerror or error}")
            return False
        return True

    def reopen(self) -> None:
        """Continue in a new file of the same name after we moved the old one away. Raises OSError
        on failure.
        """
        with self._own_lock():
            if self._descriptor >= 0:
                self._reopen()
                self._num_since_check = 0

    def close(self) -> None:
        """Close the file, writing a pending gap record if possible."""
        with self._own_lock():
            if self._descriptor < 0:
                return
            if self._gap:
                with contextlib.suppress(OSError):
                    disk.write_all(self._descriptor, self._gap_lines())
            # appending to a closed file takes the careful path, which reports it
            self._next_check = 0.0
            descriptor = self._descriptor
            self._descriptor = -1
            with contextlib.suppress(OSError):
                disk.close(descriptor)

    def __enter__(self) -> "RecordFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _own_lock(self) -> threading.RLock:
        """Return the lock; a new one after fork, because a thread left behind may have held the old
        one.
        """
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.RLock()
        return self._lock

    def _reopen(self) -> None:
        """Open for appending, creating the directory, and end a torn last line so that ours starts
        on a new line.
        """
        disk.make_directories(self.path.parent)
        flags = (
            os.O_RDWR
            | os.O_APPEND
            | os.O_CREAT
            | getattr(os, "O_CLOEXEC", 0)
            | getattr(os, "O_NOFOLLOW", 0)
        )
        descriptor = disk.open_file(self.path, flags, 0o644)
        try:
            if _stays_torn(descriptor):
                disk.write_all(descriptor, b"\n")
            identity = _identity(os.fstat(descriptor))
            if self._is_ours():
                # The number stays the same: a thread about to write to it must not hit another
                # file.
                os.dup2(descriptor, self._descriptor, inheritable=False)
                disk.close(descriptor)
            else:
                self._descriptor = descriptor
        except OSError:
            disk.close(descriptor)
            raise
        self._identity = identity

    def _is_ours(self) -> bool:
        """Return whether our descriptor still refers to the file we opened; other code may have
        closed it.
        """
        try:
            return _identity(os.fstat(self._descriptor)) == self._identity
        except OSError:
            return False

    def _append_carefully(self, line: bytes, num_records: int) -> bool:
        """Append when a check is due or records were lost: check the file, reopen it, write the gap
        record first.
        """
        with self._own_lock():
            if self._descriptor < 0:
                return self._lose(num_records, OSError(None, "the file was closed"))
            if self._gap and monotonic() < self._next_retry:
                return self._lose(num_records, None)
            gap_lines = b""
            num_written = 0
            try:
                self._look_for_file()
                gap_lines = self._gap_lines() if self._gap else b""
                payload = gap_lines + line
                while num_written < len(payload):
                    num_written += disk.write_some(self._descriptor, payload[num_written:])
            except OSError as error:
                self._next_retry = monotonic() + _RETRY_SECONDS
                if gap_lines and num_written >= len(gap_lines):
                    self._gap = {}  # reported; what is lost from here on is another gap
                num_kept = line.count(b"\n", 0, max(num_written - len(gap_lines), 0))
                return self._lose(num_records - num_kept, error)
            self._gap = {}
            self._num_since_check = num_records
            self._next_check = monotonic() + _CHECK_SECONDS
            return True

    def _look_for_file(self) -> None:
        """Start a new file if ours was deleted or replaced; what was written since the last check
        is then lost.
        """
        try:
            in_place = _identity(os.stat(self.path)) == self._identity
        except FileNotFoundError:
            in_place = False
        if in_place and self._is_ours():
            return
        if not in_place and self._num_since_check:
            self._lose(
                self._num_since_check,
                OSError(None, "the file was deleted while it was being written"),
            )
            self._num_since_check = 0
        self._reopen()

    def _gap_lines(self) -> bytes:
        # The newline comes first, because the failed write may have left part of a line.
        if self._has_gaps:
            return b"\n" + seal(encode(self._gap))
        return b"\n" if _is_torn(self._descriptor) else b""

    def _lose(self, num_records: int, error: OSError | None) -> bool:
        now = time.time()
        with self._own_lock():
            self.num_lost += num_records
            if not self._gap:
                reason = (error.strerror or str(error)) if error else "unknown"
                errno = error.errno if error else None
                self._gap = {
                    "type": GAP,
                    "num_lost": 0,
                    "errno": errno,
                    "reason": reason,
                    "from": now,
                    "to": now,
                }
                # until the gap is written, every append takes the careful path
                self._next_check = 0.0
                self._report(
                    f"losing records of {self.path}: {reason}. Training goes on; writing resumes"
                    " when it can"
                )
            self._gap["num_lost"] += num_records
            self._gap["to"] = now
        return False

    def _report(self, message: str) -> None:
        if not self._reported:
            self._reported = True
            # a user's handler may raise; the caller's step goes on
            with contextlib.suppress(Exception):
                _logger.warning(message)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_torn(descriptor: int) -> bool:
    """Return whether a file ends in part of a line."""
    size = os.fstat(descriptor).st_size
    if not size:
        return False
    if hasattr(os, "pread"):
        return os.pread(descriptor, 1, size - 1) != b"\n"
    os.lseek(descriptor, size - 1, os.SEEK_SET)  # Windows; appending ignores the position
    return os.read(descriptor, 1) != b"\n"


def _stays_torn(descriptor: int) -> bool:
    """Return whether a file ends in part of a line that nobody is completing.

    Another process may be writing: its line becomes visible page by page. As long as the file
    grows, somebody does.
    """
    size = os.fstat(descriptor).st_size
    deadline = monotonic() + _STALLED_SECONDS
    while _is_torn(descriptor):
        if monotonic() >= deadline:
            return True
        time.sleep(_LOOK_SECONDS)
        size_now = os.fstat(descriptor).st_size
        if size_now != size:
            size = size_now
            deadline = monotonic() + _STALLED_SECONDS
    return False
