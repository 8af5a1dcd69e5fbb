"""The points of curves for a range of steps and a screen width, as curve.js draws them; over steps, tokens or time.

Every stretch of about a pixel contributes its minimum and maximum, and the steps of events are always included, so a
one-step spike is visible at any zoom. A million steps take about 5 ms.

Tokens are the sum of the recorded update weights, or a logged count. Times come from a few hundred log records spread
over the file, because the records in between differ little. If a run does not record a value, it is None and never
guessed.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from sonde.dashboard.folder import OpenRun
from sonde.errors import SettingError
from sonde.log.backend import LOG
from sonde.log.lines import LogRecord, parse_log_line
from sonde.log.steps import step_numbers
from sonde.records import layout
from sonde.records.files import open_regular
from sonde.records.layout import RunLayout
from sonde.report.curve import HEIGHTS, MAX_EVENTS, Curve, Floats, Line, event_marks, line, run_panel, smoothed, thin
from sonde.report.facts import CURVES, LOSS, VALIDATION_LOSS
from sonde.report.run_curves import RunCurves

AXES: Final = ("step", "tokens", "seconds")
_TOKENS: Final = ("tokens", "train.tokens", "num_tokens", "tokens_seen", "train.num_tokens")
_NUM_TIMES: Final = 400
_MAX_LINE: Final = 1 << 16
MAX_METRICS: Final = 12
MAX_COMPARED: Final = 64
NUM_COLOURS: Final = 10
MAX_POINTS: Final = 4000


class Stretch(NamedTuple):
    """The part of a curve that is requested."""

    first: float | None
    """Start of the range; None for the beginning."""
    last: float | None
    """End of the range; None for the end."""
    points: int
    """Maximum number of points."""

    def of(self, curve: Curve) -> Curve:
        """Return the values in the range and one beyond each end, so that lines reach the edges."""
        start = 0 if self.first is None else max(int(np.searchsorted(curve.steps, self.first)) - 1, 0)
        end = len(curve) if self.last is None else int(np.searchsorted(curve.steps, self.last, side="right")) + 1
        return curve.at(slice(start, end))


def run_data(run: OpenRun, stretch: Stretch, metrics: Sequence[str] = (), rank: int | None = None) -> dict[str, Any]:
    """Return the panels of one run: the usual ones, or one per metric; for one rank, or the mean over all."""
    if len(metrics) > MAX_METRICS:
        raise SettingError(f"at most {MAX_METRICS} metrics at once, not {len(metrics)}")
    curves = run.curves()
    events = [spike.event for spike in run.spikes().spikes]
    around = [step for event in events[:MAX_EVENTS] for step in (event.first_step, event.peak_step)]
    panels, ends = [], []
    usual = [(title, CURVES[title], height) for title, height in HEIGHTS.items()]
    for title, names, height in [(name, (name,), 150) for name in metrics] or usual:
        curve = curves.first_of(names, rank)
        if curve is None:
            continue
        ghosts = curves.superseded(curve.name) if rank is None else []
        validation = curves.first_of(CURVES[VALIDATION_LOSS]) if names is CURVES[LOSS] else None
        ends += [one.steps[[0, -1]] for one in (*ghosts, curve, validation) if one is not None and len(one)]
        thinned = partial(_thinned, stretch=stretch, around=around)
        panels.append(run_panel(title, height, stretch.of(curve), ghosts, validation, thinned))
    whole = [float(min(low for low, _ in ends)), float(max(high for _, high in ends))] if ends else None
    return {"panels": panels, "events": event_marks(events[:MAX_EVENTS]), "whole": whole}


def compared_line(
    run: OpenRun, name: str, place: int, stretch: Stretch, metric: str, axis: str, smooth: float
) -> tuple[list[Line], tuple[float, float] | None, str]:
    """Return the lines of one run in a comparison, where they begin and end, and what is missing.

    With `smooth` > 0, the curve is smoothed over that percentage of its length, with the raw curve behind it.
    """
    if axis not in AXES:
        raise SettingError(f"x is one of {', '.join(AXES)}, not {axis!r}")
    curves = run.curves()
    try:
        found = curves.read(curves.find(metric)).finite()
    except SettingError:
        return [], None, f"has no {metric}"
    moved = _moved_to(axis, found, curves, run.path)
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


def _thinned(curve: Curve, stretch: Stretch, around: Sequence[int]) -> Curve:
    return thin(stretch.of(curve), stretch.points, around=around, reach=0)


def _moved_to(axis: str, curve: Curve, curves: RunCurves, run: Path) -> Curve | None:
    """Return the curve over another axis, or None if the run does not record it."""
    if axis == "step":
        return curve
    known = _tokens(curves) if axis == "tokens" else _times(run)
    if known is None or len(known[0]) < 2:
        return None
    at = np.interp(curve.steps, *known)
    return Curve(name=curve.name, steps=at.astype(np.int64) if axis == "tokens" else at, values=curve.values)  # type: ignore[arg-type]  # seconds are floats, which is fine here


def _tokens(curves: RunCurves) -> tuple[Floats, Floats] | None:
    if curves.updates.has("weight"):
        weights = np.nan_to_num(curves.updates.columns["weight"], posinf=0.0, neginf=0.0)
        return curves.updates.steps.astype(np.float64), np.cumsum(weights)
    logged = curves.first_of(_TOKENS)
    if logged is None or not len(logged.finite()):
        return None
    finite = logged.finite()
    return finite.steps.astype(np.float64), np.maximum.accumulate(finite.values)


def _times(run: Path) -> tuple[Floats, Floats] | None:
    try:
        with open_regular(RunLayout(run).record_file(layout.LOG, 0)) as file:
            size = os.fstat(file.fileno()).st_size
            found: list[tuple[int, float]] = []
            for offset in np.linspace(0, max(size - 1, 0), _NUM_TIMES).astype(np.int64).tolist():
                file.seek(offset)
                if offset:
                    file.readline(_MAX_LINE)
                seen = _step_and_time(file.readline(_MAX_LINE))
                if seen is None:
                    continue
                while found and found[-1][0] >= seen[0]:  # repeated after a restart, or already read
                    found.pop()
                found.append(seen)
    except OSError:
        return None
    if not found:
        return None
    numbers = np.array(found, np.float64)
    return numbers[:, 0], np.maximum.accumulate(numbers[:, 1] - numbers[0, 1])


def _step_and_time(line: bytes) -> tuple[int, float] | None:
    try:
        record = parse_log_line(line.strip(), rank=0)
    except ValueError:
        return None
    if not isinstance(record, LogRecord) or record.type != LOG or not record.timestamp:
        return None
    numbers = step_numbers(record.step) or ()
    return (numbers[min(1, len(numbers) - 1)], float(record.timestamp)) if numbers else None
