"""The last updates, held in memory for a look at a scene: as many batches as fit into a budget, so
that images take no more memory than tokens. Of older updates, what is small remains.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from sonde.recorder.update import Update

MAX_BYTES: Final = 256 << 20
"""How many bytes of batches are held, at most, beside those of the last update."""
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
        self._are_large = self._updates[-1].batch_bytes() * self._max_updates > MAX_BYTES
        if not self._are_large:
            return
        num_bytes = 0
        for place in reversed(range(len(self._updates) - 1)):
            size = self._updates[place].batch_bytes()
            num_bytes += size
            if size and num_bytes > MAX_BYTES:
                # A copy: the original may still wait to be written.
                self._updates[place] = self._updates[place].without_batches()
