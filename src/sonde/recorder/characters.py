"""Count the characters of rows during training, so that their bits per character can be watched.

Only targets that count are decoded, each token once in a training. A decoder of the user's that
fails is told once and not called again.
"""

from collections.abc import Callable, Sequence

from sonde.recorder.guard import PASSES, Guard
from sonde.recorder.update import RowMeans, Update
from sonde.spikes.bits_watch import CharacterCounts
from sonde.spikes.step_entry import StepEntry


class RowCharacters:
    """Counts the characters of rows of the update that is being judged."""

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        guard: Guard,
        judged: Callable[[], Update | None],
    ) -> None:
        """`judged` returns the update that is being judged."""
        self._counts = CharacterCounts(decode)
        self._guard = guard
        self._judged = judged
        self._has_failed = False

    def __call__(self, entry: StepEntry, rows: Sequence[int]) -> list[int] | None:
        """Return the number of characters of some rows of a step; None if it is not known."""
        update = self._judged()
        if self._has_failed or update is None or update.step != entry.step:
            return None
        known = [micro.rows for micro in update.micro if micro.rows is not None]
        if any(micro.targets is None for micro in known):
            return None
        try:
            return [self._counts.count(_targets(known, row)) for row in rows]
        except PASSES:
            raise
        except BaseException as error:  # noqa: BLE001  the user's decoder runs here
            self._has_failed = True
            self._guard.catch("bits per character are not watched", error)
            return None


def _targets(known: Sequence[RowMeans], row: int) -> list[int]:
    """Return the targets that count of a row, numbered over all micro-batches."""
    first = 0
    for micro in known:
        num_rows = len(micro.counts)
        if row < first + num_rows:
            tokens = micro.targets[row - first]
            counted: list[int] = tokens[tokens != micro.ignored].tolist()
            return counted
        first += num_rows
    raise IndexError(row)
