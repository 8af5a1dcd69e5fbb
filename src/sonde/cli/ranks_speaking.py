"""Print an error once when several ranks fail: only the rank that failed first reports it.

The ranks of one machine share a folder named after their common parent process, torchrun. The first rank that fails in
an attempt creates that attempt's file there and prints its error. The others, which only notice that it is gone, stay
silent, and so does every rank in a later attempt that fails the same way. If the folder cannot be used, every rank
prints its own error.
"""

import os
import stat
import tempfile
import zlib
from pathlib import Path

from sonde.records.host import world_size_of_process


def is_mine_to_say(message: str) -> bool:
    """Return whether this process should print the error.

    Registers the error for all ranks, so call it once, before printing.
    """
    if world_size_of_process() == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return True  # one rank, or ranks whose output is not collected by torchrun
    attempt = f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    said = f"said-{zlib.crc32(message.encode(errors='replace'))}"
    try:
        folder = Path(tempfile.gettempdir(), f"sonde-errors-{os.getuid()}-{os.getppid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            return True  # it belongs to somebody else
        return all([_is_first(folder / attempt), _is_first(folder / said)])
    except (OSError, AttributeError):
        return True


def _is_first(path: Path) -> bool:
    """Create a file and return True, or return False if it is there already."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
