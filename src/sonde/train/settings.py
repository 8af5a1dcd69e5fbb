"""The settings of a trainer."""

from dataclasses import dataclass
from typing import Literal, final

from sonde.errors import SettingError

Precision = Literal["float32", "bfloat16", "float16"]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSettings:
    """How updates are made, and how the loop goes."""

    seed: int = 1
    """Of everything random in forward (the data has its own)."""
    update_freq: int = 1
    """Micro-batches per rank and update: their gradients are summed."""
    ordered: bool = False
    """Sum micro-batches in one fixed order, so that any number of ranks is bitwise equal (replicated parameters only)."""
    clip_norm: float | None = None
    """Gradients are scaled down to this global norm; None never clips."""
    precision: Precision = "float32"
    """Autocast to this type; float16 comes with a dynamic loss scale."""
    log_interval: int = 100
    """Updates between two log records; each shows the means since the one before."""
    validate_every_updates: int | None = None
    """Evaluate every this many updates."""
    validate_every_epochs: int | None = 1
    """Evaluate every this many epochs."""
    save_every_updates: int | None = None
    """Save a checkpoint every this many updates."""
    save_every_epochs: int | None = 1
    """Save a checkpoint every this many epochs."""
    keep_checkpoints: int = 4
    """How many of the newest checkpoints to keep; 0 or less keeps all."""
    on_save_error: Literal["raise", "record"] = "raise"
    """When a checkpoint cannot be saved: end the run at the next step boundary, or record it and train on."""

    max_nonfinite_updates: int | None = None
    """End the run when this many losses in a row are not finite; None trains on, its checkpoints marked as suspect."""

    watch_spikes: bool = True
    """Record loss spikes with their samples, where there is a run to record them in."""

    def __post_init__(self) -> None:
        for name in ("update_freq", "log_interval"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.on_save_error not in ("raise", "record"):
            raise SettingError(f'on_save_error must be "raise" or "record", not {self.on_save_error!r}')
        every = ("validate_every_updates", "validate_every_epochs", "save_every_updates", "save_every_epochs")
        for name in (*every, "max_nonfinite_updates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name} must be at least 1, not {value}", hint="None turns it off")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise SettingError(f"clip_norm must be above 0, not {self.clip_norm}", hint="None never clips")
        if self.precision not in ("float32", "bfloat16", "float16"):
            raise SettingError(f"precision is {self.precision!r}", hint="use float32, bfloat16 or float16")


def is_due(count: int, every: int | None) -> bool:
    """Is it time, after `count` of them, for what happens every this many? None never is."""
    return every is not None and count % every == 0


StepSettings = TrainerSettings
"""An earlier name for what one update needs of them."""
