"""Events that may pass by themselves: they are recorded, and told only if the loss stays high."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sonde.forensics.scene_evidence import LITTLE, SceneEvidence
from sonde.recorder.update import Update
from sonde.spikes.detectors import Event

_SMALL_BATCH: Final = 0.5
"""A batch with less than this fraction of the usual rows is much smaller."""
_LASTING: Final = 5
"""A loss that is high for this many steps more does not pass by itself."""


@dataclass
class _Untold:
    """An event that nothing was said of when it began."""

    event: Event
    last_step: int
    """The last step whose loss was high."""
    num_high: int = 0
    """How many steps after the first were high."""


class UntoldEvents:
    """Decides which events may pass, and watches the newest of them for whether it lasts."""

    def __init__(self) -> None:
        self.highest_loss = -math.inf
        """The highest loss of this process so far."""
        self.first_loss = -math.inf
        """The first loss of this process."""
        self.is_holding = False
        """Whether there is an event that nothing was said of and that may go on."""
        self._held: _Untold | None = None

    def may_pass(
        self, event: Event, scene: SceneEvidence, update: Update, recent: Iterable[Update]
    ) -> bool:
        """Return whether there may be nothing to say: the training goes on as before, or as its
        schedule means it to.
        """
        if not math.isfinite(event.value):
            return False
        if scene.has_restarted_rate or _is_like_noise(event, update, recent):
            return True
        if event.metric == "grad_norm" and _has_usual_loss(update, recent):
            return True
        # A loss that the run never had, not even when it began, is told in any case.
        is_known = event.metric != "loss" or event.value <= self.highest_loss
        return is_known and (scene.is_only_this_batch or _may_be_negative(recent))

    def may_stay(self, update: Update, recent: Iterable[Update]) -> bool:
        """Return whether a loss that stays high is nothing by itself: where several optimizers play
        against each other, no loss says how well the training goes.
        """
        return update.has_other_moved or _may_be_negative(recent)

    def hold(self, event: Event, step: int) -> None:
        """Watch an event that nothing is said of."""
        self._held = _Untold(event, step)
        self.is_holding = True

    def note(self, step: int, loss: float, is_high: bool) -> Event | None:
        """Note the loss of a step. Returns the event that is held, if the loss has stayed high for
        so long that it has to be told now.
        """
        if self.highest_loss == -math.inf:
            self.first_loss = loss
        self.highest_loss = max(self.highest_loss, loss)
        held = self._held
        if held is None or held.event.first_step == step:
            return None
        if not is_high:
            if step - held.last_step >= _LASTING:
                self._let_go()
            return None
        held.last_step = step
        held.num_high += 1
        if held.num_high < _LASTING:
            return None
        self._let_go()
        return held.event

    def _let_go(self) -> None:
        self._held = None
        self.is_holding = False


def _may_be_negative(recent: Iterable[Update]) -> bool:
    """Return whether the loss is an objective that goes either way, such as that of a policy: it
    says how well, and not how far from right, so a jump by itself says little.
    """
    return any(other.loss is not None and other.loss < 0 for other in recent)


def _has_usual_loss(update: Update, recent: Iterable[Update]) -> bool:
    """Return whether the loss of an update is at most a little above those before it."""
    losses = [other.loss for other in recent if other.loss is not None and other is not update]
    if update.loss is None or not losses:
        return False
    highest = max(losses)
    return update.loss < highest + LITTLE * abs(highest)


def _is_like_noise(event: Event, update: Update, recent: Iterable[Update]) -> bool:
    """Return whether a jump is nothing by itself: where several optimizers play against each other,
    where the batch is much smaller than others, or where the loss rises by little.
    """
    if update.has_other_moved:
        return True
    sizes = sorted(other.num_rows for other in recent)
    if sizes and update.num_rows < _SMALL_BATCH * sizes[len(sizes) // 2]:
        return True
    return event.metric == "loss" and event.value - event.baseline < LITTLE * abs(event.baseline)
