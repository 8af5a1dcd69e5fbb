"""How the loss of a micro-batch gets known, and what else it tells.

The user may report it, the model may return it, or it is what backward is called on
(backward_loss.py). The first of these that a loop does is listened to from then on; the others cost
nothing more.
"""

from collections import deque
from typing import Any, Final

import torch
from torch import Tensor

from sonde.recorder import losses as found_losses
from sonde.recorder.backward_loss import BackwardLoss
from sonde.recorder.guard import Guard
from sonde.recorder.judgement import Judgement
from sonde.recorder.training import Training
from sonde.recorder.update import Loss, MicroBatch, Update, noted

_MAX_UNSEEN: Final = 64
"""How many losses are held that may be those of an update of which nothing else is seen."""


class LossIntake:
    """Takes the loss of each micro-batch from whoever tells it first."""

    def __init__(self, training: Training, judgement: Judgement, guard: Guard) -> None:
        self._training = training
        self._judgement = judgement
        self._guard = guard
        self._wants_rows = training.options.spikes.sample_risk is not None
        self.backward = BackwardLoss(training, judgement, guard)
        self.is_reported = False
        """Whether the user reports the loss."""
        self._comes_early: bool | None = None
        self._has_called_model = False
        self._unseen: deque[Tensor] = deque(maxlen=_MAX_UNSEEN)

    def listen_to_reports(self, *, has_step_function: bool) -> None:
        """Listen no longer to the model and to backward, because the user reports the loss."""
        self.is_reported = True
        if has_step_function and not self._training.is_compiled:
            # Without hooks a forward pass costs less. A compiled model would be compiled again.
            self._training.hooks.leave_the_model()
        self.backward.leave()

    def take_reported(self, micro: MicroBatch, loss: Tensor, token_losses: Tensor | None) -> None:
        """Take the loss of a micro-batch, and those of its tokens, as the user reports them."""
        micro.losses.append(noted(loss))
        self._note_rows(micro, loss, token_losses)

    def take_from_model(self, micro: MicroBatch, output: Any) -> bool:
        """Take the loss from what the model returned, and say whether it was there."""
        loss = found_losses.loss_in(output)
        if loss is None:
            return False
        micro.forwards[-1].loss = noted(loss)
        self._note_rows(micro, loss)
        return True

    def take_from_backward(self, micro: MicroBatch, loss: Tensor) -> bool:
        """Take the loss from what backward is called on, and say whether it may be that."""
        if not self.backward.begins(micro, loss):
            return False
        self._note_rows(micro, loss)
        return True

    def is_in_time(self, losses: list[Loss]) -> bool:
        """Return whether the loss is known before the optimizer moves. All ranks must answer
        alike.
        """
        if self._comes_early is None:
            self._comes_early = self._judgement.on_any_rank(bool(losses))
            self.backward.leave_if(self._comes_early)
        return self._comes_early or bool(self.backward.is_known)

    def late_losses(self, update: Update, returned: Any) -> list[Loss]:
        """Return the losses of an update after the optimizer has moved, or was not called at all.
        `returned` is what the step function returned.
        """
        if self.backward.is_known is None and not update.seen_losses():
            self.backward.decide(update)
        return update.seen_losses() or _returned_losses(returned, self._guard)

    # Loops that have no step function, call parts of the model instead of the model, and do not
    # report their loss: nothing is seen of a batch, and all that backward was called on since the
    # last update is its loss.

    def note_call_of_model(self) -> None:
        """Note that the model itself is called, so that batches are seen."""
        self._has_called_model = True
        self._unseen.clear()

    def note_unseen(self, loss: Tensor) -> None:
        """Hold what backward is called on while no batch is seen."""
        if not self._has_called_model:
            self._unseen.append(loss.detach())

    def take_unseen(self) -> Tensor | None:
        """Return the loss of an update of which nothing else was seen; None if there was none."""
        if not self._unseen:
            return None
        loss = torch.stack([*self._unseen]).sum()
        self._unseen.clear()
        return loss

    def _note_rows(
        self, micro: MicroBatch, loss: Tensor, token_losses: Tensor | None = None
    ) -> None:
        if self._wants_rows and isinstance(loss, Tensor):
            found = found_losses.row_means(loss, micro.num_sample_rows, token_losses)
            micro.rows = found or micro.rows


def _returned_losses(returned: Any, guard: Guard) -> list[Loss]:
    """Return the loss that a step function returned, in a list; told once if there is none."""
    found = found_losses.returned_loss(returned)
    if found is not None:
        return [found]
    guard.tell(
        "no loss",
        "no loss was seen: let the model or the step function return it, or call"
        " recorder.loss(loss)",
    )
    return []
