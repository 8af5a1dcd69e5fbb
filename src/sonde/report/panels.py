"""The panels that a page draws of one run: the usual curves, or any metrics by name.

    {"panels": [{"id": "loss", …}],  "axis": "step",  "whole": [1, 420],  "missing": [],
     "events": [{"first": 300, "last": 300, "step": 300, "kind": "spike", "label": "…"}]}

Superseded stretches are drawn behind a curve, evaluations as dots on top of the loss. Every stretch
of about a pixel contributes its minimum and maximum, so no peak is lost. If the loss was logged
every few steps only, the values of events are drawn as dots of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from sonde.errors import did_you_mean
from sonde.report.axes import STEP, Axis, NotRecordedError, open_axis
from sonde.report.curve import Curve, Line, breaks, line, panel, smoothed, thin
from sonde.report.marks import Mark, worst_marks
from sonde.report.run_curves import (
    CURVES,
    GRADIENT_NORM,
    LEARNING_RATE,
    LOSS,
    SPEED,
    VALIDATION_LOSS,
    RunCurves,
    prefix_of,
)
from sonde.report.wording import visible

USUAL: Final = {LOSS: 260, GRADIENT_NORM: 110, LEARNING_RATE: 90, SPEED: 90}
"""The usual panels by title, with their heights in pixels; evaluations are drawn on the first."""
HEIGHT: Final = 150
"""The height of any other panel."""
_MAX_MARKS: Final = 500
_MAX_SUPERSEDED: Final = 20
_COLUMNS: Final = {LOSS: "loss", GRADIENT_NORM: "grad_norm"}
"""The names that events have for what the usual panels show."""


class Stretch(NamedTuple):
    """The part of a curve that is drawn."""

    first: float | None
    """Start of the range; None for the beginning."""
    last: float | None
    """End of the range; None for the end."""
    points: int
    """Maximum number of points."""

    def of(self, curve: Curve) -> Curve:
        """Return the values in the range and one beyond each end, so that lines reach the edges."""
        start = 0
        end = len(curve)
        if self.first is not None:
            start = max(int(np.searchsorted(curve.steps, self.first)) - 1, 0)
        if self.last is not None:
            end = int(np.searchsorted(curve.steps, self.last, side="right")) + 1
        return curve.at(slice(start, end))


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """How curves are drawn."""

    stretch: Stretch
    """The part that is seen."""
    axis: str = STEP
    """What they are drawn over."""
    smooth: float = 0.0
    """The percentage of a curve's length over which it is smoothed."""
    rank: int | None = None
    """The rank whose values are shown; None for the mean over all."""
    reach: int = 0
    """Every value within this many steps of an event is kept."""


def run_panels(
    curves: RunCurves, marks: Sequence[Mark], run: Path, view: View, metrics: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what curve.js draws of a run: the usual panels, or one per metric."""
    marks = worst_marks(marks, _MAX_MARKS)
    try:
        axis = open_axis(view.axis, curves, run)
    except NotRecordedError as error:
        problem = f"This run {error.message}."
        return {"panels": [], "events": [], "axis": STEP, "whole": None, "missing": [problem]}
    drawing = _Drawing(curves, marks, view, axis)
    absent = [title for title in metrics or USUAL if not drawing.add(title)]
    missing = [_unknown(curves, name) for name in absent] if metrics else []
    return {
        "panels": drawing.panels,
        "events": [_event(mark, axis) for mark in marks],
        "axis": view.axis,
        "whole": drawing.whole(),
        "missing": missing,
    }


def sections(curves: RunCurves) -> list[dict[str, Any]]:
    """Return all metrics that are not among the usual panels, in sections by prefix."""
    usual = {curves.usual(title) for title in (*USUAL, VALIDATION_LOSS)}
    found: dict[str, list[str]] = {}
    for name in curves.names:
        if name not in usual:
            found.setdefault(prefix_of(name), []).append(name)
    ordered = sorted(found.items(), key=lambda section: (section[0] == "", section[0].lower()))
    return [{"name": name, "metrics": metrics} for name, metrics in ordered]


class _Drawing:
    """Panels of one run, one after another."""

    def __init__(self, curves: RunCurves, marks: Sequence[Mark], view: View, axis: Axis) -> None:
        self.panels: list[dict[str, Any]] = []
        self._curves = curves
        self._marks = marks
        self._view = view
        self._axis = axis
        steps = [step for mark in marks for step in (mark.step, mark.peak_step or mark.step)]
        self._around = axis.places(np.array(steps, np.int64)).tolist()
        self._ends: list[tuple[float, float]] = []

    def add(self, title: str) -> bool:
        """Add a panel, of a usual title or of a metric; return False if there is nothing in it."""
        curve = self._read(title)
        if curve is None or not len(curve):
            return False
        drawn = self._axis.of(curve)
        lines = self._ghosts(curve)
        validation = None
        if title == LOSS:
            validation = self._curves.read_usual(VALIDATION_LOSS, self._view.rank)
        lines += self._lines("" if validation is None else "train", drawn)
        if validation is not None and len(validation):
            over = self._axis.of(validation)
            lines.append(line("validation", "dots", self._thin(over)))
            self._extend(over)
        peaks = self._peaks(title, curve)
        if peaks is not None:
            lines.append(line("at events", "peaks", self._thin(peaks)))
        self._extend(drawn)
        height = USUAL.get(title, HEIGHT)
        seen = self._view.stretch.of(drawn)
        self.panels.append(panel(title, title, lines, height, seen))
        return True

    def whole(self) -> list[float] | None:
        """Return the first and the last place of all curves."""
        if not self._ends:
            return None
        return [min(first for first, _ in self._ends), max(last for _, last in self._ends)]

    def _read(self, title: str) -> Curve | None:
        rank = self._view.rank
        if title in CURVES:
            found = self._curves.read_usual(title, rank)
            if found is not None:
                return found
        return self._curves.read(title, rank=rank) if self._curves.has(title) else None

    def _extend(self, curve: Curve) -> None:
        self._ends.append((float(curve.steps[0]), float(curve.steps[-1])))

    def _thin(self, curve: Curve) -> Curve:
        view = self._view
        seen = view.stretch.of(curve)
        return thin(seen, view.stretch.points, around=self._around, reach=view.reach)

    def _lines(self, label: str, curve: Curve) -> list[Line]:
        """Return the curve; or if it is smoothed, the raw one behind the smooth one."""
        if not len(curve.finite()):
            return []
        broken_at = breaks(curve)
        if not self._view.smooth > 0:
            return [line(label, "line", self._thin(curve), broken_at)]
        width = float(curve.steps[-1] - curve.steps[0]) * self._view.smooth / 100
        smooth = smoothed(curve, width)
        return [
            line("", "raw", self._thin(curve), broken_at),
            line(label, "line", self._thin(smooth), broken_at),
        ]

    def _ghosts(self, curve: Curve) -> list[Line]:
        """Return the stretches that a restart replaced."""
        if self._view.rank is not None:
            return []
        replaced = self._curves.superseded(curve.name)[-_MAX_SUPERSEDED:]
        lines = []
        for stretch in replaced:
            over = self._axis.of(stretch)
            if len(over.finite()):
                self._extend(over)
                lines.append(line("", "ghost", self._thin(over)))
        return lines

    def _peaks(self, title: str, curve: Curve) -> Curve | None:
        """Return the values of events at steps where the curve has none; None if there are none."""
        wanted = _COLUMNS.get(title, title)
        values: dict[int, float] = {}
        for mark in self._marks:
            if mark.metric == wanted:
                values[mark.step] = mark.value
                if mark.peak_step:
                    values[mark.peak_step] = mark.peak
        steps = np.array(sorted(values), np.int64)
        steps = steps[~np.isin(steps, curve.steps)]
        found = np.array([values[step] for step in steps.tolist()], np.float64)
        is_known = np.isfinite(found)
        if not is_known.any():
            return None
        return self._axis.of(Curve(name=title, steps=steps[is_known], values=found[is_known]))


def _event(mark: Mark, axis: Axis) -> dict[str, Any]:
    first, last = axis.places(np.array([mark.step, mark.last], np.int64)).tolist()
    label = f"{mark.kind}: {mark.title}"
    if mark.cause:
        label += f" – {mark.cause}"
    return {
        "first": first,
        "last": last,
        "step": mark.step,
        "kind": mark.kind,
        "tone": mark.tone,
        "label": visible(label),
    }


def _unknown(curves: RunCurves, name: str) -> str:
    """Return a sentence about a metric that the run does not have."""
    if curves.has(name):
        return f"{visible(name)} has no values with a step"
    hint = did_you_mean(name, curves.names, "")
    return f"{visible(name):.100} was not recorded in this run" + (f"; {hint}" if hint else "")
