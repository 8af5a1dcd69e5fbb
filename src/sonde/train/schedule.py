"""The learning rate as a pure function of the update number, and one schedule that follows the
validation loss.

`Schedule.rate(update)` is the rate of the update with that 0-based number. It is stateless, so
resuming needs nothing. `Plateau` is the exception: it lowers the rate when the metric stops
improving, and its state is in the checkpoint.

    inverse_sqrt   linear warm-up, then peak · sqrt(warmup / update)       (Vaswani et al. 2017)
    cosine         linear warm-up, then half a cosine down to the end rate (Loshchilov and Hutter
                   2017)
    linear         linear warm-up, then a straight line down to the end rate
    polynomial     the same with a power, as fairseq counts: the end rate is that of the last update
    constant       linear warm-up, then the peak
    wsd            warm-up, stable, then a straight decay at the end       (Hu et al. 2024)
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from sonde.errors import SettingError
from sonde.fields import Amount, Count, Positive, PositiveNumber, check_fields

_NEED_TOTAL: Final = ("cosine", "linear", "polynomial", "wsd")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A learning rate schedule.

    ```python
    from sonde.train import Schedule

    schedule = Schedule(schedule="cosine", lr=1e-3, warmup=100, schedule_updates=1000)
    assert schedule.rate(99) <= 1e-3
    ```
    """

    schedule: Literal["inverse_sqrt", "cosine", "linear", "polynomial", "constant", "wsd"] = (
        "inverse_sqrt"
    )
    """Learning rate schedule after the warm-up."""
    lr: PositiveNumber = 5e-4
    """Peak learning rate."""
    warmup: Count = 0
    """Number of warm-up updates, over which the learning rate rises to its peak."""
    schedule_updates: int | None = None
    """The update at which cosine, linear, polynomial and wsd end (default: max_updates)."""
    end_lr: Amount = 0.0
    """Learning rate at the end of the schedule."""
    power: PositiveNumber = 1.0
    """Exponent of the polynomial schedule."""
    decay_updates: Positive | None = None
    """Length of the decay phase of wsd in updates (default: a tenth of the schedule)."""
    lr_limit: PositiveNumber | None = None
    """Upper limit on the learning rate, whatever the schedule says."""
    lr_limit_until: int | None = None
    """Apply lr_limit only until this many updates have been made (default: to the end)."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.end_lr > self.lr:
            raise SettingError(
                f"end_lr cannot be {self.end_lr}: it is above the peak, lr {self.lr}"
            )
        if self.schedule in _NEED_TOTAL and (self.schedule_updates or 0) <= self.warmup:
            raise SettingError(
                f"{self.schedule} needs schedule_updates above warmup, not {self.schedule_updates}",
                hint="it ends there; in `sonde train`, max_updates will do",
            )
        if self.schedule == "inverse_sqrt" and self.warmup < 1:
            raise SettingError(
                "inverse_sqrt needs a warmup of at least 1: its shape starts from there"
            )

    def rate(self, update: int) -> float:
        """Return the rate of the update with this 0-based number."""
        is_limited = self.lr_limit is not None and (
            self.lr_limit_until is None or update < self.lr_limit_until
        )
        return min(self._shape(update), self.lr_limit or 0.0) if is_limited else self._shape(update)

    def _shape(self, update: int) -> float:
        if update < self.warmup:
            return self.lr * (update + 1) / self.warmup
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "inverse_sqrt":
            return self.lr * math.sqrt(self.warmup / (update + 1))
        assert self.schedule_updates is not None
        if self.schedule == "wsd":
            decay = self.decay_updates or max(self.schedule_updates // 10, 1)
            return self._down(1 - min(max(self.schedule_updates - update, 0) / decay, 1.0))
        # The polynomial schedule follows fairseq, whose rate after the n-th update is that of our
        # update n - 1.
        past = update - self.warmup + (self.schedule == "polynomial")
        done = min(past / (self.schedule_updates - self.warmup), 1.0)
        if self.schedule == "cosine":
            return self._down((1 - math.cos(math.pi * done)) / 2)
        return self._down(1 - (1 - done) ** (self.power if self.schedule == "polynomial" else 1.0))

    def _down(self, share: float) -> float:
        """Return the rate after going `share` of the way from the peak to the end."""
        return self.lr + (self.end_lr - self.lr) * share


@dataclass(kw_only=True, slots=True)
class Plateau:
    """Multiplies the rate by `factor` after `patience` evaluations in a row without improvement.

    Used on top of a `Schedule`: the rate is `schedule.rate(update) * plateau.scale`.
    """

    factor: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """What the rate is multiplied by."""
    patience: Positive = 2
    """How many evaluations without improvement it takes."""
    mode: Literal["min", "max"] = "min"
    """Whether a lower or a higher value is better."""
    scale: float = 1.0
    """Factor that the schedule's rate is multiplied by."""
    _best: float = math.inf
    _num_bad: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def observe(self, value: float) -> None:
        """Record one evaluation's value of the metric. NaN is not an improvement."""
        signed = value if self.mode == "min" else -value
        if signed < self._best:
            self._best = signed
            self._num_bad = 0
            return
        self._num_bad += 1
        if self._num_bad >= self.patience:
            self.scale *= self.factor
            self._num_bad = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {"scale": self.scale, "best": self._best, "num_bad": self._num_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self.scale = state["scale"]
        self._best = state["best"]
        self._num_bad = state["num_bad"]
