"""The last updates, held in memory for a look at a scene: as many batches as fit into a budget, so
that images take no more memory than tokens. Of older updates, what is small remains.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from sonde.recorder.update import Update

MAX_BYTES: Final = 256 << 20
"""How many bytes of batches are held, at most, beside those of the last update."""


class HeldUpdates:
    """The last updates, oldest first."""

    def __init__(self, max_updates: int) -> None:
        self._updates: deque[Update] = deque(maxlen=max_updates)
        self._sizes: deque[int] = deque(maxlen=max_updates)
        """How many bytes the batches of each take; 0 if they are no longer held."""
        self._num_bytes = 0

    def __iter__(self) -> Iterator[Update]:
        """Return the updates, oldest first."""
        return iter(self._updates)

    def __len__(self) -> int:
        """Return the number of updates."""
        return len(self._updates)

    @property
    def oldest_to_go(self) -> Update | None:
        """The update that the next one takes the place of; None if there is still room."""
        return self._updates[0] if len(self._updates) == self._updates.maxlen else None

    def append(self, update: Update) -> None:
        """Hold another update, and let go of the batches of old ones that are too much."""
        if len(self._updates) == self._updates.maxlen:
            self._num_bytes -= self._sizes[0]
        size = update.batch_bytes()
        self._updates.append(update)
        self._sizes.append(size)
        self._num_bytes += size
        if self._num_bytes - size > MAX_BYTES:
            self._let_go()

    def go_back(self, num_updates: int) -> None:
        """Forget the updates after `num_updates`."""
        while self._updates and self._updates[-1].step > num_updates:
            self._updates.pop()
            self._num_bytes -= self._sizes.pop()

    def _let_go(self) -> None:
        for place, size in enumerate(self._sizes):
            if self._num_bytes - self._sizes[-1] <= MAX_BYTES:
                return
            if size:
                # A copy: the original may still wait to be written.
                self._updates[place] = self._updates[place].without_batches()
                self._num_bytes -= size
                self._sizes[place] = 0
