"""The vitals of a training as they are written: read from the device by the worker, with the share
of clipped steps, and remembered for a look at the scene of an event.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from sonde.forensics.precursors import CLIPPED_SHARE
from sonde.recorder.update import Update

_NUM_CLIPPED: Final = 100
"""Over so many steps the share of clipped ones is taken."""
_MAX_HISTORY: Final = 64


class VitalsBook:
    """Reads the vitals of one training. Used by one thread, the worker."""

    def __init__(self) -> None:
        self.history: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=_MAX_HISTORY)
        """The last vitals, by step, oldest first."""
        self._clipped: deque[bool] = deque(maxlen=_NUM_CLIPPED)

    def note(self, update: Update) -> Mapping[str, float]:
        """Read and remember the vitals of an update, and return them; empty if none were measured.
        Every update is to be noted: the share of clipped steps is taken over all.
        """
        if update.clip_limit is not None and update.grad_norm is not None:
            self._clipped.append(update.grad_norm > float(update.clip_limit))
        if update.vitals is None:
            return {}
        values = update.vitals.by_name()
        if self._clipped:
            values[CLIPPED_SHARE] = sum(self._clipped) / len(self._clipped)
        self.history.append((update.step, values))
        return values
