"""Run a sonde command on several local processes in one process group, like torchrun, for a run with several ranks.

Each process is `python -m sonde ARGUMENTS` with the environment that torchrun would set, on the loopback address. Only
rank 0 prints, and its exit code is the command's. If another rank fails first, the end of its output is shown.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Final

from sonde.errors import SondeError

_POLL_SECONDS: Final = 0.05
_GRACE_SECONDS: Final = 10.0
"""How long, in seconds, the other ranks may take to exit after one has failed, so that they can report errors too."""


def is_rank() -> bool:
    """Return whether this process is one rank of several."""
    return "RANK" in os.environ and "MASTER_ADDR" in os.environ


def run_on_ranks(arguments: Sequence[str], world_size: int) -> int:
    """Run `sonde ARGUMENTS` on `world_size` ranks and return the exit code of rank 0. Raises if another rank failed first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    group = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as words:
        try:
            for rank in map(str, range(world_size)):
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "sonde", *arguments],
                        env={**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL if processes else None,
                        stderr=words if processes else None,
                    )
                )
            codes = _wait(processes)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        if codes[0] is not None:
            return codes[0]
        words.seek(0)
        failed = next(rank for rank, code in enumerate(codes) if code)
        raise SondeError(
            f"rank {failed} of {world_size} ended with {codes[failed]}",
            cause=words.read().decode(errors="replace")[-2000:].strip() or None,
        )


def _wait(processes: "Sequence[subprocess.Popen[bytes]]") -> list[int | None]:
    """Return the exit codes once all processes have ended, or after a grace period if one has failed."""
    deadline = None
    while True:
        codes = [process.poll() for process in processes]
        if None not in codes or (deadline is not None and time.monotonic() > deadline):
            return codes
        if deadline is None and any(codes):
            deadline = time.monotonic() + _GRACE_SECONDS
        time.sleep(_POLL_SECONDS)
