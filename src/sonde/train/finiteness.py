"""Is anything learned at all? A loss that is not finite any more makes checkpoints suspect, is told, and may end the run; so does data without batches.

One bad update is no matter, since its gradients are not applied (step.py); this counts how many came in a row. The loss is the mean over all ranks, so
all of them decide alike.
"""

import logging
import math
from collections.abc import Callable
from typing import Final, final

from sonde.errors import SettingError

_logger: Final = logging.getLogger("sonde")

_SUSPECT_AFTER: Final = 2
_TOLD_AFTER: Final = 10


@final
class FinitenessWatch:
    """Counts the updates in a row whose loss is not finite."""

    def __init__(self, limit: int | None, event: Callable[..., None]) -> None:
        """`limit` of them end the run; None never does. `event` records what happened to the run."""
        self._limit = limit
        self._event = event
        self._num_in_a_row = 0
        self._epoch_ended_after = [-1, -1]

    @property
    def suspicion(self) -> str | None:
        """Why the weights are suspect now; None while they are not."""
        return f"the last {self._num_in_a_row} losses are not finite" if self._num_in_a_row >= _SUSPECT_AFTER else None

    def end_epoch(self, num_updates: int) -> None:
        """An epoch is over. Raises when two in a row made no update: such a run would never end."""
        self._epoch_ended_after = [self._epoch_ended_after[1], num_updates]
        if self._epoch_ended_after[0] == num_updates:
            raise SettingError("the training data has no batches", hint="look at the data and its filters")

    def observe(self, step: int, loss: float, weight: float) -> str | None:
        """Take the loss of an update (of `weight` tokens); the reason to stop, if there is one."""
        if not weight:
            return None  # every sample was left out: that says nothing about the weights
        self._num_in_a_row = 0 if math.isfinite(loss) else self._num_in_a_row + 1
        if self._num_in_a_row == _TOLD_AFTER:
            _logger.warning(
                "the loss has not been finite for %d updates, up to %d: nothing is learned any more. Checkpoints from here on are "
                "marked as suspect; max_nonfinite_updates ends such a run, `sonde diagnose` looks for the cause",
                _TOLD_AFTER,
                step,
            )
            self._event("not_finite", step=step, num_updates=_TOLD_AFTER)
        if self._limit is None or self._num_in_a_row < self._limit:
            return None
        return f"max_nonfinite_updates: {self._num_in_a_row} losses in a row are not finite"
