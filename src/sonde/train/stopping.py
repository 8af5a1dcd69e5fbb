"""When training stops: five conditions may compete, the first one met wins and is named.

    stop = StopWhen(max_updates=10_000, patience=5, metric="loss")
    state = StopState()
    reason = stop.reason(state, progress)      # None: go on; else a sentence for the record and the screen

Pure: `reason` looks at numbers that all ranks share and returns the same answer on all of them. The order in which
conditions are asked is fixed (non-finite is not one of them): updates, epochs, hours, learning rate, target, patience.
`StopState` is what must survive a resume: the best value, how many evaluations went by without a better one, and the
hours spent before this start.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from sonde.errors import SettingError


def better_mode(metric: str, mode: Literal["min", "max"] | None) -> Literal["min", "max"]:
    """Is less of a metric better, or more?"""
    return mode or ("max" if metric in ("bleu", "chrf", "accuracy") else "min")


@final
@dataclass(kw_only=True, slots=True)
class Progress:
    """Where a run stands, as the stop conditions see it."""

    num_updates: int
    """Updates made."""
    num_epochs: int
    """Epochs completed."""
    hours: float
    """Hours of training, over all starts of the run."""
    lr: float
    """The learning rate of the next update."""


@final
@dataclass(slots=True)
class StopState:
    """What the stop conditions remember. Part of every checkpoint."""

    best: float | None = None
    """The best value of the metric so far; None before the first evaluation."""
    num_evaluations_since_best: int = 0
    """Evaluations that brought no improvement since then."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class StopWhen:
    """The conditions that end a run. At least one must be given; any combination is legal. 0 and -1 turn one off, as None does."""

    max_epochs: int | None = None
    """Stop after this many epochs."""
    max_updates: int | None = None
    """Stop after this many updates."""
    max_hours: float | None = None
    """Stop after this many hours of training, counted over all starts of the run."""
    min_lr: float | None = None
    """Stop when the learning rate has passed its peak and fallen to this or below."""
    patience: int | None = None
    """Stop after this many evaluations without improvement; a tie is none; 0 or less is off."""
    target: float | None = None
    """Stop when the metric has reached this value."""
    metric: str = "loss"
    """The evaluation's value that patience and target look at."""
    mode: Literal["min", "max"] | None = None
    """Is less of the metric better, or more? Unless given, more for bleu, chrf and accuracy, and less for anything else."""

    def __post_init__(self) -> None:
        problems = []
        for name in ("max_epochs", "max_updates", "max_hours", "min_lr"):
            value = getattr(self, name)
            if value in (0, -1):  # fairseq's way to say "off"
                object.__setattr__(self, name, None)
            elif value is not None and not value > 0:
                problems.append(f"{name} must be above 0, not {value}")
        if self.target is not None and not math.isfinite(self.target):
            problems.append(f"target must be a finite number, not {self.target}")
        if self.mode not in ("min", "max", None):
            problems.append(f'mode must be "min" or "max", not {self.mode!r}')
        endings = (self.max_epochs, self.max_updates, self.max_hours, self.min_lr, self.target)
        if all(value is None for value in endings) and (self.patience is None or self.patience <= 0):
            problems.append("no stop condition was given: training would never end")
        if problems:
            raise SettingError(
                "StopWhen cannot be used: " + "; ".join(problems),
                hint="give one or more of max_epochs, max_updates, max_hours, min_lr, patience, target",
            )

    def check_peak_lr(self, peak_lr: float) -> None:
        """Refuse a minimum learning rate that the schedule never rises above: training would end before it began."""
        if self.min_lr is not None and self.min_lr >= peak_lr:
            raise SettingError(
                f"min_lr={self.min_lr} is not below the peak learning rate {peak_lr}",
                hint="lower min_lr, or raise the learning rate",
            )

    def check_evaluation(self, results: Mapping[str, float]) -> None:
        """Refuse to go on when patience or target look at a value that the evaluation does not give."""
        is_needed = self.target is not None or (self.patience or 0) > 0
        if is_needed and self.metric not in results:
            raise SettingError(
                f"patience and target look at {self.metric!r}, which the evaluation does not give",
                cause=f"it gives {', '.join(sorted(results)) or 'nothing'}",
                hint="`sonde train --evaluate bleu` gives bleu and chrf; from Python, an EvaluatorCallback gives any value",
            )

    def observe(self, state: StopState, value: float | None) -> bool:
        """Take in one evaluation's value of the metric; True when it is the best so far. None is not counted."""
        if value is None:
            return False
        if self.is_better(value, state.best):
            state.best = value
            state.num_evaluations_since_best = 0
            return True
        state.num_evaluations_since_best += 1
        return False

    def is_better(self, value: float, than: float | None) -> bool:
        """Is `value` an improvement? NaN never is; a tie is not."""
        if math.isnan(value):
            return False
        if than is None:
            return True
        return value < than if better_mode(self.metric, self.mode) == "min" else value > than

    def reason(self, state: StopState, progress: Progress, *, past_peak_lr: bool = True) -> str | None:
        """Why training should stop now, or None. `past_peak_lr` is False during warm-up, when a low rate is normal."""
        if self.max_updates is not None and progress.num_updates >= self.max_updates:
            return f"max_updates: {progress.num_updates} updates were made"
        if self.max_epochs is not None and progress.num_epochs >= self.max_epochs:
            return f"max_epochs: {progress.num_epochs} epochs were completed"
        if self.max_hours is not None and progress.hours >= self.max_hours:
            return f"max_hours: {progress.hours:.2f} hours were spent"
        if self.min_lr is not None and past_peak_lr and progress.lr <= self.min_lr:
            return f"min_lr: the learning rate fell to {progress.lr:g}"
        if self.target is not None and state.best is not None and not self.is_better(self.target, state.best):
            return f"target: {self.metric} reached {state.best:g}"
        if self.patience is not None and 0 < self.patience <= state.num_evaluations_since_best:
            than = "" if state.best is None else f" than {state.best:g}"
            return f"patience: {state.num_evaluations_since_best} evaluations without a better {self.metric}{than}"
        return None
