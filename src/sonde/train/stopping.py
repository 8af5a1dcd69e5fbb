"""When training stops: stop conditions, losses that stay non-finite, and signals from outside.

    stop = StopWhen(max_updates=10_000, patience=5, metric="loss")
    state = StopState()
    # None: go on; else a sentence for the record and the screen
    reason = stop.reason(state, num_updates=7, num_epochs=0, lr=0.1)

If several conditions are met, the first one wins and is named. The order is fixed: updates, epochs,
learning rate, target, patience. `reason` is pure: it uses only numbers that all ranks share, so all
ranks get the same answer. Hours are counted by rank 0, so the training loop checks them.
`StopState` is what must survive a resume: the best value, and the number of evaluations since.

`FinitenessCheck` counts non-finite losses in a row. A single one is harmless, since its gradients
are not applied (step.py). The loss is the mean over all ranks, so all of them decide alike.

`stop_signals` handles SIGTERM, Ctrl-C and SIGHUP: finish the step, save, and exit with 143, 130 or
129; a second signal exits at once. The handlers only set a flag, which the loop reads between
steps; nothing is saved from inside a signal handler. They are installed for a `with` block, in the
main thread only, and the previous handlers are restored afterwards.
"""

import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal

from sonde.errors import SettingError
from sonde.fields import Finite, check_fields

_logger: Final = logging.getLogger("sonde")
_SUSPECT_AFTER: Final = 2
_TOLD_AFTER: Final = 10
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def better_mode(metric: str, mode: Literal["min", "max"] | None) -> Literal["min", "max"]:
    """Return whether a lower ("min") or higher ("max") value of the metric is better."""
    return mode or ("max" if metric in ("bleu", "chrf", "accuracy") else "min")


@dataclass(slots=True)
class StopState:
    """State of the stop conditions. Part of every checkpoint."""

    best: float | None = None
    """The best value of the metric so far; None before the first evaluation."""
    num_evaluations_since_best: int = 0
    """Evaluations since then that brought no improvement."""


@dataclass(frozen=True, kw_only=True)
class StopWhen:
    """The conditions that end a run, in any combination. At least one must be given. 0 and -1 turn
    one off, as None does.

    ```python
    from sonde import StopWhen

    stop = StopWhen(max_epochs=20, max_hours=8, patience=3)
    ```
    """

    max_epochs: int | None = None
    """Stop after this many epochs."""
    max_updates: int | None = None
    """Stop after this many updates."""
    max_hours: float | None = None
    """Stop after this many hours of training, counted over all starts of the run."""
    min_lr: float | None = None
    """Stop when the learning rate has decayed to this value or below."""
    patience: int | None = None
    """Stop after this many evaluations without improvement. A tie is not an improvement; 0 or less
    turns this off.
    """
    target: Finite | None = None
    """Stop when the metric reaches this value."""
    metric: str = "loss"
    """The evaluation metric that patience and target use."""
    mode: Literal["min", "max"] | None = None
    """Whether a lower or a higher metric is better (default: max for bleu, chrf and accuracy, min
    for anything else).
    """

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("max_epochs", "max_updates", "max_hours", "min_lr"):
            value = getattr(self, name)
            if value in (0, -1):  # fairseq's way of turning a condition off
                object.__setattr__(self, name, None)
            elif value is not None and not value > 0:
                raise SettingError(f"{name} must be above 0, not {value}")
        endings = (self.max_epochs, self.max_updates, self.max_hours, self.min_lr, self.target)
        if all(value is None for value in endings) and (
            self.patience is None or self.patience <= 0
        ):
            raise SettingError(
                "no stop condition was given: training would never end",
                hint=(
                    "give one or more of max_epochs, max_updates, max_hours, min_lr, patience,"
                    " target"
                ),
            )

    def check_peak_lr(self, peak_lr: float) -> None:
        """Raise if `min_lr` is not below the peak of the schedule: training would end before it
        began.
        """
        if self.min_lr is not None and self.min_lr >= peak_lr:
            raise SettingError(
                f"min_lr={self.min_lr} is not below the peak learning rate {peak_lr}",
                hint="lower min_lr, or raise the learning rate",
            )

    def check_evaluation(self, results: Mapping[str, float]) -> None:
        """Raise if patience or target use a metric that the evaluation does not provide."""
        is_needed = self.target is not None or (self.patience or 0) > 0
        if is_needed and self.metric not in results:
            raise SettingError(
                f"patience and target look at {self.metric!r}, which the evaluation does not give",
                cause=f"it gives {', '.join(sorted(results)) or 'nothing'}",
                hint=(
                    "`sonde train --evaluate bleu` gives bleu and chrf; from Python, an"
                    " EvaluatorCallback gives any value"
                ),
            )

    def observe(self, state: StopState, value: float | None) -> None:
        """Record one evaluation's value of the metric. None, no evaluation, is not counted."""
        if value is not None and self.is_better(value, state.best):
            state.best = value
            state.num_evaluations_since_best = 0
        elif value is not None:
            state.num_evaluations_since_best += 1

    def is_better(self, value: float, than: float | None) -> bool:
        """Return whether `value` is an improvement. NaN and ties are not."""
        if math.isnan(value):
            return False
        if than is None:
            return True
        return value < than if better_mode(self.metric, self.mode) == "min" else value > than

    def reason(self, state: StopState, num_updates: int, num_epochs: int, lr: float) -> str | None:
        """Return why training should stop now, or None. `lr` is the rate of the next update,
        infinite during warm-up.
        """
        if self.max_updates is not None and num_updates >= self.max_updates:
            return f"max_updates: {num_updates} steps were made"
        if self.max_epochs is not None and num_epochs >= self.max_epochs:
            epochs = "1 epoch was" if num_epochs == 1 else f"{num_epochs} epochs were"
            return f"max_epochs: {epochs} completed"
        if self.min_lr is not None and lr <= self.min_lr:
            return f"min_lr: the learning rate fell to {lr:g}"
        if (
            self.target is not None
            and state.best is not None
            and not self.is_better(self.target, state.best)
        ):
            return f"target: {self.metric} reached {state.best:g}"
        if self.patience is not None and 0 < self.patience <= state.num_evaluations_since_best:
            than = "" if state.best is None else f" than {state.best:g}"
            return (
                f"patience: {state.num_evaluations_since_best} evaluations without a better"
                f" {self.metric}{than}"
            )
        return None


class FinitenessCheck:
    """Counts consecutive updates with a non-finite loss."""

    def __init__(self, limit: int | None, event: Callable[..., None]) -> None:
        """Stop after `limit` non-finite losses in a row, or never if None. `event` records events
        of the run.
        """
        self._limit = limit
        self._event = event
        self._num_in_a_row = 0
        self._epoch_ended_after = [-1, -1]

    @property
    def suspicion(self) -> str | None:
        """Why the weights are suspect now; None if they are not."""
        if self._num_in_a_row >= _SUSPECT_AFTER:
            return f"the last {self._num_in_a_row} losses are not finite"
        return None

    def end_epoch(self, num_updates: int) -> None:
        """Record the end of an epoch. Raises after two epochs in a row without an update, which
        would never end.
        """
        self._epoch_ended_after = [self._epoch_ended_after[1], num_updates]
        if self._epoch_ended_after[0] == num_updates:
            raise SettingError(
                "the training data has no batches", hint="look at the data and its filters"
            )

    def observe(self, step: int, loss: float, weight: float) -> str | None:
        """Record the loss of an update of `weight` tokens. Returns the reason to stop, if there is
        one.
        """
        if not weight:
            return None  # every sample was left out, which says nothing about the weights
        self._num_in_a_row = 0 if math.isfinite(loss) else self._num_in_a_row + 1
        if self._num_in_a_row == _TOLD_AFTER:
            _logger.warning(
                "the loss has not been finite for %d steps, up to %d: nothing is learned any"
                " more. Checkpoints from here on are marked as suspect; max_nonfinite_updates ends"
                " such a run, `sonde diagnose` looks for the cause",
                _TOLD_AFTER,
                step,
            )
            self._event("not_finite", step=step, num_updates=_TOLD_AFTER)
        if self._limit is None or self._num_in_a_row < self._limit:
            return None
        return f"max_nonfinite_updates: {self._num_in_a_row} losses in a row are not finite"


@contextmanager
def stop_signals() -> Iterator[list[signal.Signals]]:
    """Yield a list that gets the first signal received in the block.

    After the block it raises SystemExit with 128 plus that signal's number, as a shell reports it.
    """
    received: list[signal.Signals] = []

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  Python's signature
        if received:
            # Second request: do not wait for a checkpoint. No cleanup, since that might be what
            # hangs.
            os._exit(128 + number)
        received.append(signal.Signals(number))

    former: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            # `nohup` asks for SIGHUP to be ignored
            if signal.getsignal(number) is not signal.SIG_IGN:
                former[number] = signal.signal(number, handle)
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if received:
        raise SystemExit(128 + received[0])
