"""Text lines appended to a file that stays open: one system call a line, nothing raised into a training step.

Each line is one `os.write` on an `O_APPEND` descriptor, so processes that share a file do not tear each other's lines, and
what was written survives SIGKILL. Unlike `records.append`, nothing is ever added to the file: whoever reads the lines may
be another program. A failing disk is reported once, counted in `num_lost` and tried again with the next line.
"""

import logging
import os
import time
from pathlib import Path
from typing import Final, final

from sonde.records import disk

_CHECK_SECONDS: Final = 1.0
"""How often to look whether the file was deleted or moved away; a look costs a system call."""

_logger = logging.getLogger("sonde")


@final
class LineFile:
    """One append-only text file. It and its directory are created at the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # the caller may change its working directory
        self.num_lost = 0
        """Lines that did not reach the file."""
        self._descriptor = -1
        self._next_check = 0.0

    def append(self, line: str) -> bool:
        """Write a line that ends in a newline; False when it was lost."""
        try:
            if time.monotonic() >= self._next_check:
                self._look()
            payload = line.encode("utf-8", "backslashreplace")
            if disk.write(self._descriptor, payload) != len(payload):
                raise OSError("the disk took only part of a line")
        except OSError as error:
            self._lose(error)
            return False
        return True

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._next_check = 0.0
            disk.close(descriptor)

    def _look(self) -> None:
        """Open the file, or open it anew when the name no longer leads to it."""
        if self._descriptor >= 0 and not _is_at(self._descriptor, self.path):
            self.close()
        if self._descriptor < 0:
            disk.make_directories(self.path.parent)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._descriptor = disk.open_file(self.path, flags, 0o644)
            _end_torn_line(self._descriptor)
        self._next_check = time.monotonic() + _CHECK_SECONDS

    def _lose(self, error: OSError) -> None:
        self.num_lost += 1
        self._next_check = 0.0
        if self.num_lost == 1:
            reason = error.strerror or error
            _logger.warning("losing lines of %s: %s. Training goes on; writing resumes when it can", self.path, reason)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _end_torn_line(descriptor: int) -> None:
    """A writer that was killed may have left half a line: ours starts on a fresh one."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        disk.write_all(descriptor, b"\n")
