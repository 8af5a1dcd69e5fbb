"""How far a run may go in mending itself."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from sonde.errors import SettingError
from sonde.forensics.verdict import Verdict


class Diagnose(Protocol):
    """Finds out what was wrong with a step of a run."""

    def __call__(self, run: Path, step: int, /) -> Verdict | None:
        """The verdict, also written into the run; None when that cannot be."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Heal:
    """The budget, which counts over all starts of a run, and what is allowed."""

    max_times: int
    """Go back at most so often; then the run ends with the verdict."""
    patience: int = 8
    """Updates that a loss has to come back by itself; one that is not finite has none."""
    max_skipped: int = 10_000
    """Leave out at most this many samples in all."""
    max_repeated: int = 10_000
    """Make at most this many updates again in all."""
    halve_rate: int | None = None
    """When the learning rate is to blame, halve it for this many updates; None ends the run with the advice."""
    dry_run: bool = False
    """Train on, and only say what would have been done."""
    diagnosis_seconds: float = 3600.0
    """A diagnosis that takes longer is given up, and the cause is not known."""
    diagnose: Diagnose | None = None
    """What finds the cause; unless given, `sonde diagnose` in a process beside."""

    def __post_init__(self) -> None:
        for name in ("max_times", "patience", "max_skipped", "max_repeated", "halve_rate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name} must be 1 or more, not {value}")
        if not self.diagnosis_seconds > 0:
            raise SettingError(f"diagnosis_seconds must be above 0, not {self.diagnosis_seconds}")

    def train(self, trainer: Any, start: Callable[[Any, bool], str]) -> str:
        """What `Trainer(…, heal=…)` calls: train, mend, train on."""
        from sonde.heal import train_in_place  # loads torch, which reading the settings needs not

        return train_in_place(trainer, self, start)
