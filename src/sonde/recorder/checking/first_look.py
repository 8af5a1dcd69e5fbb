"""The look at the first updates of every recorded training, as the pipeline calls it: it can be
turned off, ends by itself, and never raises into the loop. Where the training changes later, it
looks at one update more.
"""

from typing import Any, Final

import torch

from sonde.recorder.checking.first_steps import FirstSteps, tell_what_changed, tell_what_is_wrong
from sonde.recorder.guard import Guard, guarded
from sonde.recorder.training import Training
from sonde.recorder.update import Update
from sonde.records.replay_order import is_check

LOOK_EVERY: Final = 8
"""How many updates pass between two looks for a change of mode, of parameter groups, or of what is
trained.
"""


class FirstLook:
    """Looks at the first updates, and again when mode or parameter groups change."""

    def __init__(self, training: Training, guard: Guard) -> None:
        self.guard = guard
        self._training = training
        self._is_check = is_check()
        self.steps = FirstSteps(training, is_thorough=self._is_check)
        """What was seen."""
        self._is_wanted = training.options.checks or self._is_check
        self.is_on = self._is_wanted
        """Whether updates are looked at now."""
        self._changed_since: int | None = None
        """The step since which the training has changed, while the next update is looked at."""

    @guarded("the first updates are not looked at")
    def before_step(self, optimizer: torch.optim.Optimizer, norm: Any) -> None:
        """An optimizer is about to move; `norm` is the one that was clipped, if any."""
        if self._changed_since is None:
            self.steps.before_step(optimizer, norm)
        else:
            self.steps.note_gradients()

    @guarded("the first updates are not looked at")
    def end_update(self, update: Update) -> None:
        """One of the first updates is over, or a later one at which a change would be noticed."""
        since = self._changed_since
        if since is not None:
            self._changed_since = None
            self.is_on = False
            tell_what_changed(self.steps, self.guard, since)
        elif self.is_on:
            self.steps.end_update(update)
            self.is_on = not self.steps.is_over
            if not self.is_on and not self._is_check:
                since = update.step - self.steps.num_updates + 1
                tell_what_is_wrong(self.steps, self._training, self.guard, since)
        elif self._is_wanted and self.steps.has_changed():
            self._changed_since = max(update.step - LOOK_EVERY, 0) + 1
            self.is_on = True
