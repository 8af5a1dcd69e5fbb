"""Which checkpoints stay: the newest k, the best by a metric, and never fewer good ones for the sake of a bad one. Pure.

    doomed = steps_to_remove(entries, Keep(newest=4, metric="loss"))

A checkpoint that was saved in distrust (its weights held NaN) does not count among the newest k: it cannot push a good one out.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

from sonde.errors import SettingError


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a checkpoint says of itself, beside its state."""

    run_id: str | None = None
    """The run that saved it; only that run's checkpoints are ever pruned by it."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The results of the last evaluation before it."""
    distrusted: str | None = None
    """Why its weights are suspect; None when nobody says so."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A checkpoint on the disk."""

    step: int
    about: About


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """How many checkpoints stay."""

    newest: int = 4
    """How many of the newest to keep; 0 or less keeps all."""
    metric: str | None = None
    """Also keep the best by this value of the evaluation."""
    mode: Literal["min", "max"] = "min"
    """Is less of the metric better, or more?"""

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise SettingError(f'mode must be "min" or "max", not {self.mode!r}')


def best_step(entries: Sequence[Entry], metric: str, mode: str) -> int | None:
    """The step with the best value of a metric, the earliest among equals; None when no entry has one."""
    sign = 1.0 if mode == "min" else -1.0
    scored = [
        (sign * value, entry.step)
        for entry in entries
        if isinstance(value := entry.about.metrics.get(metric), (int, float)) and not math.isnan(value)
    ]
    return min(scored)[1] if scored else None


def steps_to_remove(entries: Sequence[Entry], keep: Keep, *, protected: Collection[int] = ()) -> list[int]:
    """The steps that may go, oldest first."""
    if keep.newest <= 0:
        return []
    trusted = sorted(entry.step for entry in entries if entry.about.distrusted is None)
    distrusted = sorted(entry.step for entry in entries if entry.about.distrusted is not None)
    stay = {*trusted[-keep.newest :], *distrusted[-keep.newest :], *protected}
    if keep.metric is not None:
        best = best_step([entry for entry in entries if entry.about.distrusted is None], keep.metric, keep.mode)
        stay |= {best} if best is not None else set()
    return sorted(entry.step for entry in entries if entry.step not in stay)
