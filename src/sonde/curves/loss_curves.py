"""The loss of a run and what belongs beside it: the learning rate, the gradient norm, the epochs,
and where the training was started again. Pure.

    loss_curve(points, metric=None)     the curve of a log's points

What stands is the curve without what a restart made again: a step that goes back replaces
everything from there on. Ranks that print the same steps in turn are averaged. The replaced
stretches are kept, because the reason for a restart is often in them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from sonde.curves.names import is_evaluation, is_loss, loss_names, norm_name, rate_name
from sonde.curves.points import VALUE, Point
from sonde.errors import SettingError, did_you_mean
from sonde.records.columns import Floats, Integers
from sonde.report.curve import Curve

_MANY: Final = 0.05
"""If a larger share of all points goes back, ranks print in turn or a table is not in order: these
are no restarts.
"""
_FEW_RESTARTS: Final = 8
_MAX_NAMED: Final = 20
_COLUMNS: Final = ("steps", "values", "rates", "norms", "epochs", "times")
"""The fields of a curve that have a value for every point."""


class Restart(NamedTuple):
    """A place where the training was started again and made steps once more."""

    step: int
    """The first step that was made again."""
    last_step: int
    """The last step before it."""
    num_again: int
    """The number of points that exist from before and after."""
    before: float
    """The median loss of those points before; NaN if there are none."""
    after: float
    """The median loss of the same steps after."""
    is_same: bool
    """Whether every one of those points has the same loss as before."""


class Beside(NamedTuple):
    """The names of what is logged beside a loss; None for what is not."""

    rate: str | None
    norm: str | None
    epoch: str | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossCurve:
    """The loss of one run, ordered by step, with what belongs beside it. Missing values are NaN."""

    name: str
    """The name of the loss in the log."""
    steps: Integers
    values: Floats
    rates: Floats
    """The learning rate at each point."""
    norms: Floats
    """The gradient norm at each point."""
    epochs: Floats
    times: Floats
    """Seconds since the epoch."""
    restarts: tuple[Restart, ...] = ()
    replaced: tuple["LossCurve", ...] = ()
    """The stretches that a restart made again, in the order they were logged."""
    bad_norms: tuple[int, ...] = ()
    """The steps with a gradient norm that is logged but NaN or infinite."""
    others: tuple[str, ...] = ()
    """The other losses of the log."""
    evaluation: Curve | None = None
    """The loss of its evaluations, if the log has one."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def spacing(self) -> int:
        """The usual number of steps from one point to the next; 1 if there are too few points."""
        return int(np.median(np.diff(self.steps))) if len(self) > 1 else 1

    @property
    def metric(self) -> str:
        """What it is called in sentences: "loss", or its name if it is something else."""
        return "loss" if is_loss(self.name) else self.name

    @property
    def has_rates(self) -> bool:
        """Whether the log has a learning rate."""
        return bool(np.isfinite(self.rates).any())

    @property
    def has_norms(self) -> bool:
        """Whether the log has a gradient norm."""
        return bool(np.isfinite(self.norms).any())

    def at(self, places: Integers) -> "LossCurve":
        """Return the points at these places, without restarts."""
        columns: dict[str, Any] = {name: getattr(self, name)[places] for name in _COLUMNS}
        return replace(self, **columns, restarts=(), replaced=())

    def as_curve(self) -> Curve:
        """Return the loss alone."""
        return Curve(name=self.name, steps=self.steps, values=self.values)

    def index(self, step: int) -> int:
        """Return the place of the first point at or after a step."""
        return min(int(np.searchsorted(self.steps, step)), len(self) - 1)


def joined(first: LossCurve, second: LossCurve) -> LossCurve:
    """Return the points of two curves, one after the other."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in _COLUMNS
    }
    return replace(first, **columns)


def loss_curve(points: Iterable[Point], metric: str | None = None) -> LossCurve | None:
    """Return the curve of the training loss, or of `metric`. None if the log has no loss; raises
    SettingError if it has no such metric.

    ```python
    from pathlib import Path

    from sonde.curves import find_sources, loss_curve

    losses = [9.0 if step == 250 else 3.0 + step % 5 / 100 for step in range(400)]
    lines = [f"step {step} loss {loss}" for step, loss in enumerate(losses)]
    Path("train.log").write_text("\\n".join(lines))
    (source,) = find_sources("train.log")
    curve = loss_curve(source.points)
    assert (curve.name, float(curve.values[250])) == ("loss", 9.0)
    ```
    """
    found = list(points)
    counts: dict[str, int] = {}
    for point in found:
        for name, value in point.values.items():
            counts[name] = counts.get(name, 0) + math.isfinite(value)
    chosen = find_metric(counts, metric)
    if chosen is None:
        return None
    logged = [point for point in found if chosen in point.values]
    names = Beside(rate_name(counts), norm_name(counts), "epoch")
    as_logged = _columns(logged, chosen, names)
    kept, stretches = _standing(as_logged.steps)
    stands = _averaged(as_logged.at(kept))
    replaced = [as_logged.at(gone) for gone, _ in stretches]
    restarts = [
        restart_between(old.as_curve(), stands.steps, stands.values, first)
        for old, (_, first) in zip(replaced, stretches, strict=True)
    ]
    others = [name for name in loss_names(counts) if name != chosen]
    return replace(
        stands,
        rates=_filled(stands.rates, found, names.rate, stands.steps),
        norms=_filled(stands.norms, found, names.norm, stands.steps),
        epochs=_filled(stands.epochs, found, names.epoch, stands.steps),
        restarts=tuple(restarts),
        replaced=tuple(replaced),
        bad_norms=_not_finite(found, names.norm),
        others=tuple(others),
        evaluation=_evaluation_of(found, chosen, others),
    )


def _evaluation_of(points: Sequence[Point], chosen: str, others: Sequence[str]) -> Curve | None:
    """Return the loss of evaluations that stands; None if there is none, or if it is `chosen`."""
    name = evaluation_name(chosen, others)
    if name is None:
        return None
    logged = [point for point in points if name in point.values]
    as_logged = _columns(logged, name, Beside(None, None, None))
    kept, _ = _standing(as_logged.steps)
    return _averaged(as_logged.at(kept)).as_curve()


def _columns(points: Sequence[Point], name: str, beside: Beside) -> LossCurve:
    """Return points in the order they were logged, with the numbers logged with them."""

    def column(other: str | None) -> Floats:
        values = [point.values.get(other, math.nan) if other else math.nan for point in points]
        return np.array(values, np.float64)

    times = [math.nan if point.time is None else point.time for point in points]
    return LossCurve(
        name=name,
        steps=np.array([point.step for point in points], np.int64),
        values=column(name),
        rates=column(beside.rate),
        norms=column(beside.norm),
        epochs=column(beside.epoch),
        times=np.array(times, np.float64),
    )


def evaluation_name(chosen: str, losses: Iterable[str]) -> str | None:
    """Return the first loss that is of an evaluation; None if `chosen` is one itself."""
    if is_evaluation(chosen):
        return None
    return next((name for name in losses if is_evaluation(name)), None)


def find_metric(counts: Mapping[str, int], metric: str | None) -> str | None:
    """Return the name of the training loss, or of `metric` as the log spells it. `counts` are the
    names of the log with the number of their finite values.
    """
    if metric is not None:
        wanted = metric.replace("/", ".").lower()
        matches = [name for name in counts if name.lower() == wanted]
        if matches:
            return matches[0]
        known = ", ".join(list(counts)[:_MAX_NAMED])
        raise SettingError(
            f"there are no values called {metric!r}",
            hint=did_you_mean(metric, counts, f"there are {known}"),
        )
    losses = loss_names(counts)
    training = [name for name in losses if not is_evaluation(name)] or losses
    most = max((counts[name] for name in training), default=0)
    # A summary at the end has the best name and one value; a progress bar's own loss may be NaN
    # throughout, beside the real one.
    for name in training:
        if 4 * counts[name] >= most:
            return name
    return VALUE if VALUE in counts else None


def _standing(steps: Integers) -> tuple[Integers, list[tuple[Integers, int]]]:
    """Return the places of the points that stand, ordered by step, and for every restart those that
    it replaced and its first step.
    """
    falls = (np.flatnonzero(np.diff(steps) < 0) + 1).tolist()
    if len(falls) > max(_FEW_RESTARTS, _MANY * len(steps)):
        return np.argsort(steps, kind="stable"), []
    if not falls:
        return np.arange(len(steps)), []
    kept = np.arange(falls[0])
    stretches = []
    for start, end in pairwise([*falls, len(steps)]):
        num_kept = int(np.searchsorted(steps[kept], steps[start]))
        stretches.append((kept[num_kept:], int(steps[start])))
        kept = np.concatenate([kept[:num_kept], np.arange(start, end)])
    return kept, stretches


def _averaged(curve: LossCurve) -> LossCurve:
    """Return one point for every step: the mean of the losses logged at it, and the last of the
    rest.
    """
    backwards = curve.steps[::-1]
    distinct, last = np.unique(backwards, return_index=True)
    if len(distinct) == len(curve):
        return curve
    once = curve.at(len(curve) - 1 - last)
    where = np.searchsorted(distinct, curve.steps)
    sums = np.zeros(len(distinct))
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(sums, where, curve.values)
        return replace(once, values=sums / np.bincount(where))


def _filled(values: Floats, points: Sequence[Point], name: str | None, steps: Integers) -> Floats:
    """Return a column; what was logged at the same step, apart from the loss, fills its gaps."""
    if name is None or np.isfinite(values).all():
        return values
    known = {point.step: point.values[name] for point in points if name in point.values}
    apart = np.array([known.get(step, math.nan) for step in steps.tolist()], np.float64)
    return np.where(np.isfinite(values), values, apart)


def _not_finite(points: Sequence[Point], name: str | None) -> tuple[int, ...]:
    """Return the steps at which a metric is logged but no number."""
    return tuple(
        point.step
        for point in points
        if name in point.values and not math.isfinite(point.values[name])
    )


def restart_between(old: Curve, steps: Integers, values: Floats, first: int) -> Restart:
    """Compare a stretch with the steps that replaced it; `first` is the first of them."""
    common, before_at, after_at = np.intersect1d(old.steps, steps, return_indices=True)
    before = old.values[before_at]
    after = values[after_at]
    return Restart(
        step=first,
        last_step=int(old.steps[-1]) if len(old) else first,
        num_again=len(common),
        before=float(np.median(before)) if len(common) else math.nan,
        after=float(np.median(after)) if len(common) else math.nan,
        is_same=bool(len(common)) and np.array_equal(before, after, equal_nan=True),
    )
