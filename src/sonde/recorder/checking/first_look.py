"""The look at the first updates of every recorded training, as the pipeline calls it: it can be
turned off, ends by itself, and never raises into the loop.
"""

from typing import Any

import torch

from sonde.recorder.checking.first_steps import FirstSteps, tell_what_changed, tell_what_is_wrong
from sonde.recorder.guard import Guard, guarded
from sonde.recorder.training import Training
from sonde.recorder.update import Update
from sonde.records.replay_order import is_check


class FirstLook:
    """Looks at the first updates, and again when mode or parameter groups change."""

    def __init__(self, training: Training, guard: Guard) -> None:
        self.guard = guard
        self._is_check = is_check()
        self.steps = FirstSteps(training, is_thorough=self._is_check)
        """What was seen."""
        self._is_wanted = training.options.checks or self._is_check
        self._is_on = self._is_wanted

    @guarded("the first updates are not looked at")
    def before_step(self, optimizer: torch.optim.Optimizer, norm: Any) -> None:
        """An optimizer is about to move; `norm` is the one that was clipped, if any."""
        if self._is_on:
            self.steps.before_step(optimizer, norm)

    @guarded("the first updates are not looked at")
    def end_update(self, update: Update) -> None:
        """An update is over."""
        if self._is_on:
            self.steps.end_update(update)
            self._is_on = not self.steps.is_over
            if not self._is_on and not self._is_check:
                tell_what_is_wrong(self.steps, self.guard)
        elif self._is_wanted and self.steps.has_changed():
            tell_what_changed(self.steps, self.guard)
