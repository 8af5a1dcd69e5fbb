"""Print an error once when several ranks fail: only the rank that failed first reports it.

The ranks of one machine share a small file named after their common parent process, torchrun. The first rank that fails
in an attempt registers itself there and prints its error. The others, which only notice that it is gone, stay silent,
and so does every rank in a later attempt that fails the same way. If the file cannot be used, every rank prints its own
error.
"""

import os
import stat
import tempfile
from pathlib import Path

from sonde.records.host import world_size_of_process

_MAX_BYTES = 1 << 16


def is_mine_to_say(message: str) -> bool:
    """Return whether this process should print the error.

    Registers the error for all ranks, so call it once, before printing.
    """
    if world_size_of_process() == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return True  # one rank, or ranks whose output is not collected by torchrun
    attempt = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    said = f"said {message!r}"[:2000]
    try:
        return _first(Path(tempfile.gettempdir()) / f"sonde-errors-{os.getuid()}-{os.getppid()}", attempt, said)
    except (OSError, ImportError, AttributeError):
        return True


def _first(path: Path, attempt: str, said: str) -> bool:
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
            return True  # the file belongs to somebody else
        known = os.pread(descriptor, _MAX_BYTES, 0).decode(errors="replace").splitlines()
        os.write(descriptor, f"{attempt}\n{said}\n".encode())
        return attempt not in known and said not in known
    finally:
        os.close(descriptor)
