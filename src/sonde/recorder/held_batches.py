"""The last updates, held in memory for a look at a scene: as many batches as fit into a budget, so
that images take no more memory than tokens. Of older updates, what is small remains.

A tensor from a worker process of a loader keeps a file open, and takes shared memory, of which a
container may have little. Both would be missing to the loader, so such batches have a budget of
their own.
"""

import functools
import os
from collections import deque
from collections.abc import Iterator
from typing import Final

from sonde.recorder.update import Update

MAX_BYTES: Final = 256 << 20
"""How many bytes of batches are held, at most, beside those of the last update."""
_MAX_FILES: Final = 128
"""How many tensors that keep a file open are held, at most: processes may have 1,024 files."""
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  only its size is asked
_LOOK_EVERY: Final = 8
"""Small batches are counted once in so many updates: those of a training are alike."""


class HeldUpdates:
    """The last updates, oldest first."""

    def __init__(self, max_updates: int) -> None:
        self._updates: deque[Update] = deque(maxlen=max_updates)
        self._max_updates = max_updates
        self._are_large = True
        """Whether so many batches like the last one would not fit, as far as is known."""

    def __iter__(self) -> Iterator[Update]:
        """Return the updates, oldest first."""
        return iter(self._updates)

    def __len__(self) -> int:
        """Return the number of updates."""
        return len(self._updates)

    def append(self, update: Update) -> Update | None:
        """Hold another update, and let go of the batches of old ones that are too much. Returns
        the update that is held no longer; None if there was still room.
        """
        updates = self._updates
        leaving = updates[0] if len(updates) == self._max_updates else None
        updates.append(update)
        if self._are_large or update.step % _LOOK_EVERY == 0:
            self._keep_within_budget()
        return leaving

    def go_back(self, num_updates: int) -> None:
        """Forget the updates after `num_updates`."""
        while self._updates and self._updates[-1].step > num_updates:
            self._updates.pop()

    def _keep_within_budget(self) -> None:
        self._are_large = _share_of(self._updates[-1]) * self._max_updates > 1
        if not self._are_large:
            return
        total = 0.0
        for update in [*self._updates][-2::-1]:
            total += _share_of(update)
            # Those that wait to be written are held by the writer too. Not a copy without batches:
            # others hold the update itself.
            if total > 1 and update.is_written and update.micro:
                update.let_go_of_batches()


def _share_of(update: Update) -> float:
    """Return what fraction of the budget the batches of an update take."""
    num_bytes = update.batch_bytes()
    num_files = update.num_shared_tensors()
    if not num_files:
        return num_bytes / max(MAX_BYTES, 1)
    return max(num_bytes / min(MAX_BYTES, _shared_memory() // 8), num_files / _MAX_FILES)


@functools.cache
def _shared_memory() -> int:
    """Return how many bytes of memory processes can share."""
    try:
        found = os.statvfs(_SHARED_MEMORY)
    except (OSError, AttributeError):  # not on every system
        return 8 * MAX_BYTES
    return max(found.f_blocks * found.f_frsize, 8)
