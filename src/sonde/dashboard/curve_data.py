"""The points of curves for a stretch of steps and a width of the screen, as curve.js draws them (report/panels.py).

Every stretch of a pixel or so gives its lowest and its highest value, and the steps of events are always among the points: a spike of one step
is seen at any zoom. A million steps take some 5 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from sonde.dashboard.axes import AXES, moved_to
from sonde.dashboard.open_runs import OpenRun
from sonde.errors import SettingError
from sonde.report.curve import Curve, smoothed, thin
from sonde.report.facts import GRAD_NORM, LEARNING_RATE, LOSS, SPEED, VALIDATION_LOSS
from sonde.report.panels import MAX_EVENTS, Line, event_marks, line, panel
from sonde.report.run_curves import RunCurves

MAX_METRICS: Final = 12
MAX_COMPARED: Final = 64
NUM_COLOURS: Final = 10
_USUAL: Final = (
    ("loss", LOSS, 260),
    ("gradient norm", GRAD_NORM, 110),
    ("learning rate", LEARNING_RATE, 90),
    ("tokens per second", SPEED, 90),
)
_MAX_POINTS: Final = 4000
_MAX_SUPERSEDED: Final = 20


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """What of a curve is asked for."""

    first: float | None = None
    """From here on; None is the beginning."""
    last: float | None = None
    """Up to here."""
    points: int = 1600
    """So many at most."""

    def __post_init__(self) -> None:
        if not 2 <= self.points <= _MAX_POINTS:
            raise SettingError(f"points is 2 to {_MAX_POINTS}, not {self.points}")

    def of(self, curve: Curve) -> Curve:
        """The values of the stretch, and one beyond each end, to which lines lead."""
        start = 0 if self.first is None else max(int(np.searchsorted(curve.steps, self.first)) - 1, 0)
        end = len(curve) if self.last is None else int(np.searchsorted(curve.steps, self.last, side="right")) + 1
        return Curve(name=curve.name, steps=curve.steps[start:end], values=curve.values[start:end])


def run_data(run: OpenRun, stretch: Stretch, metrics: Sequence[str] = (), rank: int | None = None) -> dict[str, Any]:
    """Panels of one run: the usual ones, or one for each metric; of one rank, or the mean over all."""
    if len(metrics) > MAX_METRICS:
        raise SettingError(f"at most {MAX_METRICS} metrics at once, not {len(metrics)}")
    curves = run.curves()
    events = [spike.event for spike in run.spikes().spikes]
    around = [step for event in events[:MAX_EVENTS] for step in (event.first_step, event.peak_step)]
    panels, ends = [], []
    for title, names, height in [(name, (name,), 150) for name in metrics] or _USUAL:
        name = next((one for one in names if curves.updates.has(one) or one in curves.logged), None)
        if name is None:
            continue
        curve = curves.read(name, rank=rank)
        drawn = [("ghost", one) for one in _ghosts(curves, name, rank)] + [("line", curve)]
        validation = curves.first_of(VALIDATION_LOSS) if names is LOSS else None
        drawn += [("dots", validation)] if validation is not None else []
        ends += [one.steps[[0, -1]] for _, one in drawn if len(one)]
        lines = [
            line(
                "validation" if kind == "dots" else "train" if validation is not None and kind == "line" else "",
                kind,
                thin(stretch.of(one), stretch.points, around=around, reach=0),
            )
            for kind, one in drawn
        ]
        panels.append(panel(title, lines, height, stretch.of(curve)))
    whole = [float(min(low for low, _ in ends)), float(max(high for _, high in ends))] if ends else None
    return {"panels": panels, "events": event_marks(events[:MAX_EVENTS]), "whole": whole}


def compared_line(
    run: OpenRun, name: str, place: int, stretch: Stretch, metric: str, axis: str, smooth: float
) -> tuple[list[Line], tuple[float, float] | None, str]:
    """One run among others: its curve, smoothed over `smooth` percent of it with the raw one behind; where it begins and ends; what is missing."""
    if axis not in AXES:
        raise SettingError(f"x is one of {', '.join(AXES)}, not {axis!r}")
    curves = run.curves()
    try:
        found = curves.read(curves.find(metric)).finite()
    except SettingError:
        return [], None, f"has no {metric}"
    moved = moved_to(axis, found, curves, run.path)
    if moved is None or not len(moved):
        return [], None, f"does not say its {axis}" if len(found) else f"has no {metric}"
    ends = (float(moved.steps[0]), float(moved.steps[-1]))
    colour = f"c{place % NUM_COLOURS}"
    seen = stretch.of(moved)
    if smooth <= 0:
        return [line(name, f"line {colour}", thin(seen, stretch.points))], ends, ""
    smoother = stretch.of(smoothed(moved, (ends[1] - ends[0]) * smooth / 100))
    raw = line("", f"raw {colour}", thin(seen, stretch.points))
    return [raw, line(name, f"line {colour}", thin(smoother, stretch.points))], ends, ""


def _ghosts(curves: RunCurves, name: str, rank: int | None) -> list[Curve]:
    return curves.superseded(name)[-_MAX_SUPERSEDED:] if rank is None else []
