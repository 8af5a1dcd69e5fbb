"""The loss as what backward is called on, for loops in which neither the model nor the user says
what the loss is.

Most loops compute the loss in their step function. It is known to the recorder when the step
function returns it, and then the optimizer has moved: too late to look at the scene of an event.
But what backward is called on is the loss too, up to a factor. A loop may divide it by the number
of micro-batches, and a gradient scaler multiplies it.

The first update tells which factor. If what the step function returns is always the same multiple
of what backward is called on, that is taken from the next update on. If not, or if backward is
called several times, the loss is what the step function returns, as late as that is.
"""

import math
from typing import Any, Final

from torch import Tensor

from sonde.recorder.guard import Guard
from sonde.recorder.judgement import Judgement
from sonde.recorder.losses import returned_loss
from sonde.recorder.training import Training
from sonde.recorder.update import Loss, MicroBatch, Update, noted

_ROUNDING: Final = 1e-5
"""Factors and losses that differ by less, relatively, are the same."""
_MAX_FACTOR: Final = 65536
"""A larger factor than this is not a number of micro-batches."""


class BackwardLoss:
    """Learns whether the loss can be taken where backward begins, and takes it there."""

    def __init__(self, training: Training, judgement: Judgement, guard: Guard) -> None:
        self._training = training
        self._judgement = judgement
        self._guard = guard
        self.is_known: bool | None = None
        """Whether the loss is taken from backward; None until that is decided."""
        self._returned: list[Loss | None] = []
        """What the step function returned for each micro-batch, until it is decided."""

    def leave(self) -> None:
        """Take no loss from backward, and listen no longer."""
        self.is_known = False
        self._training.hooks.leave_backward()

    def leave_if(self, is_told: bool) -> None:
        """Take no loss from backward if the model or the user tells it."""
        if is_told:
            self.leave()

    def begins(self, micro: MicroBatch, loss: Tensor) -> bool:
        """Note what backward is called on. Returns whether that may be the loss."""
        if micro.seen_losses() and not micro.is_loss_of_backward:
            return False
        micro.num_backwards += 1
        if self.is_known is False or micro.num_backwards > 1:
            return False
        micro.backward_loss = self._training.loss_of_backward(noted(loss))
        if self.is_known:
            _take(micro)
        return True

    def note_returned(self, update: Update, returned: Any) -> None:
        """Note what the step function returned for a micro-batch, to learn what the loss is. Once
        that is known, notice if it turns out to be another one.
        """
        if self.is_known is None:
            self._returned.append(returned_loss(returned))
            return
        # Several ranks cannot change what they do, because one alone would.
        can_change = self._judgement.is_alone and update.micro
        if can_change and not _agrees(update.micro[-1], returned):
            self.leave()
            self._guard.tell("another loss", _another_loss(update.step))

    def decide(self, update: Update) -> None:
        """Decide after an update whether the loss is taken from backward, from this update on. All
        ranks must decide alike.
        """
        can_take = self._can_take(update)
        if self._judgement.on_any_rank(can_take is None):
            return  # the next update tells
        self.is_known = not self._judgement.on_any_rank(not can_take)
        for micro in update.micro:
            if self.is_known and micro.backward_loss is not None:
                micro.backward_loss = micro.backward_loss * self._training.backward_factor
                _take(micro)
            else:
                micro.rows = None  # they belong to something else
        training = self._training
        if not self.is_known:
            self.leave()
            if self._judgement.must_know_in_time:
                self._guard.tell("late loss", _late_loss(self._judgement.on_event))
        elif training.step_function is not None and not training.is_compiled:
            # Without hooks a forward pass costs less.
            training.hooks.leave_the_model()

    def _can_take(self, update: Update) -> bool | None:
        """Return whether the loss of this update could have been taken from backward; None if its
        numbers do not tell.
        """
        returned = self._returned
        self._returned = []
        micros = update.micro
        if any(micro.num_backwards != 1 or micro.backward_loss is None for micro in micros):
            return False
        if self._training.device_type != "cpu" and self._training.scalers():
            return False  # to read the scale would be to wait for the device
        factors = _factors(micros, returned)
        if not factors:
            return True
        if not all(math.isfinite(factor) for factor in factors):
            return None
        factor = float(round(factors[0]))
        is_same = all(abs(other - factor) <= _ROUNDING * factor for other in factors)
        if not is_same or not 1 <= factor <= _MAX_FACTOR:
            return False
        self._training.backward_factor = factor
        return True


def _agrees(micro: MicroBatch, returned: Any) -> bool:
    """Return whether the step function returned the loss that was taken. On a device this is not
    asked: it would wait.
    """
    if not micro.is_loss_of_backward or micro.num_backwards != 1:
        return micro.num_backwards == 1
    loss = returned_loss(returned)
    taken = micro.backward_loss
    if not isinstance(loss, float) or not isinstance(taken, float):
        return True
    if not math.isfinite(loss) or not math.isfinite(taken):
        return math.isfinite(loss) == math.isfinite(taken)
    return abs(loss - taken) <= _ROUNDING * abs(taken)


def _another_loss(step: int) -> str:
    return (
        f"sonde: from step {step} on the loss is the one that the step function returns, after the"
        " optimizer has moved: backward is called on another one, or several times. To have it"
        " judged before, call recorder.loss(loss) before backward"
    )


def _late_loss(on_event: str) -> str:
    return (
        f'sonde: on_event="{on_event}" can only record, because the loss is not known before the'
        " optimizer moves: call recorder.loss(loss) in the step function, before backward"
    )


def _take(micro: MicroBatch) -> None:
    assert micro.backward_loss is not None
    micro.losses = [micro.backward_loss]
    micro.is_loss_of_backward = True


def _factors(micros: list[MicroBatch], returned: list[Loss | None]) -> list[float]:
    """Return how many times each loss that was returned is what backward was called on."""
    if len(returned) != len(micros):
        return []
    factors = []
    for micro, loss in zip(micros, returned, strict=True):
        if loss is not None and micro.backward_loss is not None:
            called_on = float(micro.backward_loss)
            factors.append(float(loss) / called_on if called_on else math.nan)
    return factors
