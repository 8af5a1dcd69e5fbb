"""The memory of this process, sampled every few seconds by the recorder's background worker. Costs
the training nothing. Systems without /proc give no samples.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sonde.errors import SondeError
from sonde.records.files import open_regular
from sonde.spikes.memory_climb import MemorySeries

_EVERY_SECONDS: Final = 5.0
_STATM: Final = Path("/proc/self/statm")


class MemoryWatch:
    """Samples the memory of this process."""

    def __init__(self) -> None:
        self._series = MemorySeries()
        self._next = 0.0

    def sample(self, step: int) -> None:
        """Take a sample if the last one is some seconds old."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_SECONDS
        num_bytes = own_memory()
        if num_bytes is not None:
            self._series.add(step, num_bytes)

    @property
    def samples(self) -> Sequence[tuple[int, int]]:
        """The samples so far: step and bytes."""
        return self._series.samples


def own_memory() -> int | None:
    """Return the bytes in memory that are this process's own: no mapped files, no shared memory.
    None if the system does not say.
    """
    try:
        with open_regular(_STATM) as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, SondeError, ValueError):
        return None
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
