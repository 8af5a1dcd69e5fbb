"""The learning rate as a pure function of the update number, and one schedule that follows the validation loss.

`Schedule.lr(update)` is the rate of the update with that 0-based number. It is stateless, so resuming needs nothing.
`Plateau` is the exception: it lowers the rate when the metric stops improving, and its state is in the checkpoint.

    inverse_sqrt   linear warm-up, then peak · sqrt(warmup / update)       (Vaswani et al. 2017)
    cosine         linear warm-up, then half a cosine down to the end rate (Loshchilov and Hutter 2017)
    linear         linear warm-up, then a straight line down to the end rate
    polynomial     the same with a power, as fairseq counts: the end rate is that of the last update
    constant       linear warm-up, then the peak
    wsd            warm-up, stable, then a straight decay at the end       (Hu et al. 2024)
"""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from sonde.errors import SettingError, did_you_mean

NAMES: Final = ("inverse_sqrt", "cosine", "linear", "polynomial", "constant", "wsd")
_NEED_TOTAL: Final = ("cosine", "linear", "polynomial", "wsd")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A learning rate schedule."""

    name: Literal["inverse_sqrt", "cosine", "linear", "polynomial", "constant", "wsd"] = "inverse_sqrt"
    """The shape after the warm-up."""
    peak_lr: float
    """The highest rate, reached at the end of the warm-up."""
    num_warmup_updates: int = 0
    """Number of updates over which the rate rises linearly to the peak."""
    num_updates: int | None = None
    """The update at which cosine, linear, polynomial and wsd end; required by them. Later updates keep the end rate."""
    end_lr: float = 0.0
    """The rate at the end of the schedule."""
    power: float = 1.0
    """The exponent of the polynomial schedule."""
    num_decay_updates: int | None = None
    """Length of the decay phase of wsd in updates; a tenth of `num_updates` by default."""
    limit: float | None = None
    """Upper limit on the rate, if any."""
    limit_until: int | None = None
    """Number of updates for which `limit` applies; None applies it to the end."""

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise SettingError(
                f"there is no schedule named {self.name!r}",
                hint=did_you_mean(self.name, NAMES, f"known: {', '.join(NAMES)}"),
            )
        problems = []
        if not (self.peak_lr > 0 and math.isfinite(self.peak_lr)):
            problems.append(f"peak_lr must be a finite number above 0, not {self.peak_lr}")
        if not 0 <= self.end_lr <= self.peak_lr:
            problems.append(f"end_lr must lie between 0 and peak_lr, not {self.end_lr}")
        if self.num_warmup_updates < 0:
            problems.append(f"num_warmup_updates must be 0 or more, not {self.num_warmup_updates}")
        if self.name in _NEED_TOTAL and (self.num_updates is None or self.num_updates <= self.num_warmup_updates):
            problems.append(f"{self.name} needs num_updates above num_warmup_updates, not {self.num_updates}")
        if self.name == "inverse_sqrt" and self.num_warmup_updates < 1:
            problems.append("inverse_sqrt needs num_warmup_updates of at least 1: its shape starts from there")
        if self.limit is not None and not self.limit > 0:
            problems.append(f"limit must be above 0, not {self.limit}")
        if not self.power > 0:
            problems.append(f"power must be above 0, not {self.power}")
        if self.num_decay_updates is not None and self.num_decay_updates < 1:
            problems.append(f"num_decay_updates must be at least 1, not {self.num_decay_updates}")
        if problems:
            raise SettingError("the schedule cannot be used: " + "; ".join(problems))

    def lr(self, update: int) -> float:
        """Return the rate of the update with this 0-based number."""
        is_limited = self.limit is not None and (self.limit_until is None or update < self.limit_until)
        return min(self._shape(update), self.limit or 0.0) if is_limited else self._shape(update)

    def _shape(self, update: int) -> float:
        if update < self.num_warmup_updates:
            return self.peak_lr * (update + 1) / self.num_warmup_updates
        if self.name == "constant":
            return self.peak_lr
        if self.name == "inverse_sqrt":
            return self.peak_lr * math.sqrt(self.num_warmup_updates / (update + 1))
        assert self.num_updates is not None
        if self.name == "wsd":
            decay = self.num_decay_updates or max(self.num_updates // 10, 1)
            return self._down(1 - min(max(self.num_updates - update, 0) / decay, 1.0))
        # The polynomial schedule follows fairseq, whose rate after the n-th update is that of our update n - 1.
        past = update - self.num_warmup_updates + (self.name == "polynomial")
        done = min(past / (self.num_updates - self.num_warmup_updates), 1.0)
        if self.name == "cosine":
            return self._down((1 - math.cos(math.pi * done)) / 2)
        return self._down(1 - (1 - done) ** (self.power if self.name == "polynomial" else 1.0))

    def past_peak(self, update: int) -> bool:
        """Return whether the warm-up is over."""
        return update >= self.num_warmup_updates

    def _down(self, share: float) -> float:
        """Return the rate after going `share` of the way from the peak to the end."""
        return self.peak_lr + (self.end_lr - self.peak_lr) * share


@final
class Plateau:
    """Multiplies the rate by `factor` after `patience` evaluations in a row without improvement.

    Used on top of a `Schedule`: the rate is `schedule.lr(update) * plateau.scale`.
    """

    def __init__(self, *, factor: float = 0.5, patience: int = 2, mode: Literal["min", "max"] = "min") -> None:
        if not 0 < factor < 1:
            raise SettingError(f"factor must lie between 0 and 1, not {factor}")
        if patience < 1:
            raise SettingError(f"patience must be at least 1, not {patience}")
        self._factor = factor
        self._patience = patience
        self._sign = 1.0 if mode == "min" else -1.0
        self.scale = 1.0
        """Factor that the schedule's rate is multiplied by."""
        self._best = math.inf
        self._num_bad = 0

    def observe(self, value: float) -> None:
        """Record one evaluation's value of the metric. NaN is not an improvement."""
        if self._sign * value < self._best:
            self._best = self._sign * value
            self._num_bad = 0
            return
        self._num_bad += 1
        if self._num_bad >= self._patience:
            self.scale *= self._factor
            self._num_bad = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {"scale": self.scale, "best": self._best, "num_bad": self._num_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self.scale, self._best, self._num_bad = state["scale"], state["best"], state["num_bad"]
