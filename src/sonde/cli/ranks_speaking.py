"""With several ranks an error is said once: by the rank that met it first.

Ranks of one machine meet in a small file named after their common parent, torchrun. Whoever fails first in an attempt writes itself in and speaks; the
others, which only notice that it is gone, stay silent, and so does everyone in a later attempt that fails the same way. Where the file cannot be used
every rank speaks for itself.
"""

import os
import stat
import tempfile
from pathlib import Path

from sonde.records.host import world_size_of_process

_MAX_BYTES = 1 << 16


def is_mine_to_say(message: str) -> bool:
    """Should this process print the error? Asking is answering for the others: ask once, before printing."""
    if world_size_of_process() == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return True  # one rank, or ranks whose words somebody else than torchrun gathers
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
            return True  # not ours: somebody else's name for it
        known = os.pread(descriptor, _MAX_BYTES, 0).decode(errors="replace").splitlines()
        os.write(descriptor, f"{attempt}\n{said}\n".encode())
        return attempt not in known and said not in known
    finally:
        os.close(descriptor)
