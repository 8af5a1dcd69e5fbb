"""What curves are drawn over: steps, tokens, or seconds since the start.

    axis = open_axis("tokens", curves, run)
    axis.places(np.array([100, 200]))        the number of tokens after 100 and 200 steps

Tokens are the sum of the recorded update weights, or a logged count. Times come from a few hundred
log records spread over the file, because the records in between differ little. What a run does not
record is never guessed.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from sonde.errors import SettingError
from sonde.log.backend import LOG
from sonde.log.lines import LogRecord, parse_log_line
from sonde.records import layout
from sonde.records.columns import Floats, Integers
from sonde.records.files import open_regular
from sonde.records.layout import RunLayout
from sonde.records.values import step_numbers
from sonde.report.curve import Curve
from sonde.report.run_curves import RunCurves, spelling

STEP: Final = "step"
TOKENS: Final = "tokens"
SECONDS: Final = "seconds"
AXES: Final = (STEP, TOKENS, SECONDS)
_TOKENS: Final = ("tokens", "train.tokens", "num_tokens", "tokens_seen", "train.num_tokens")
_NUM_TIMES: Final = 400
_MAX_LINE: Final = 1 << 16


class NotRecordedError(SettingError):
    """A run does not record what an axis needs."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """One axis of a run."""

    name: str
    """`step`, `tokens` or `seconds`."""
    known_steps: Floats | None = None
    """Steps whose place is known; None if a step is its own place."""
    known_places: Floats | None = None
    """Their places."""

    def places(self, steps: Integers) -> Any:
        """Return where steps stand on the axis."""
        if self.known_steps is None or self.known_places is None:
            return steps
        found = np.interp(steps, self.known_steps, self.known_places)
        return found.astype(np.int64) if self.name == TOKENS else found

    def of(self, curve: Curve) -> Curve:
        """Return a curve over this axis."""
        if self.known_steps is None:
            return curve
        return Curve(name=curve.name, steps=self.places(curve.steps), values=curve.values)


def open_axis(name: str, curves: RunCurves, run: Path) -> Axis:
    """Return an axis of a run; raise NotRecordedError if the run does not record it."""
    if name not in AXES:
        raise SettingError(f"x is one of {', '.join(AXES)}, not {name!r:.50}")
    if name == STEP:
        return Axis(STEP)
    known = _tokens(curves) if name == TOKENS else _times(run, curves)
    if known is None or len(known[0]) < 2:
        raise NotRecordedError(f"does not say its {name}")
    return Axis(name, *known)


def _tokens(curves: RunCurves) -> tuple[Floats, Floats] | None:
    if "weight" in curves.updates.filled:
        weights = np.nan_to_num(curves.updates.columns["weight"], posinf=0.0, neginf=0.0)
        return curves.updates.steps.astype(np.float64), np.cumsum(weights)
    spelled = {spelling(name): name for name in reversed(curves.logged)}
    names = [spelled[spelling(name)] for name in _TOKENS if spelling(name) in spelled]
    if not names:
        return None
    finite = curves.read(names[0]).finite()
    if not len(finite):
        return None
    return finite.steps.astype(np.float64), np.maximum.accumulate(finite.values)


def _times(run: Path, curves: RunCurves) -> tuple[Floats, Floats] | None:
    found: list[tuple[int, float]] = []
    try:
        with open_regular(RunLayout(run).record_file(layout.LOG, 0)) as file:
            size = os.fstat(file.fileno()).st_size
            for offset in np.linspace(0, max(size - 1, 0), _NUM_TIMES).astype(np.int64).tolist():
                file.seek(offset)
                if offset:
                    file.readline(_MAX_LINE)
                seen = _step_and_time(file.readline(_MAX_LINE), curves)
                if seen is None:
                    continue
                # repeated after a restart, or already read
                while found and found[-1][0] >= seen[0]:
                    found.pop()
                found.append(seen)
    except OSError:
        return None
    if not found:
        return None
    numbers = np.array(found, np.float64)
    return numbers[:, 0], np.maximum.accumulate(numbers[:, 1] - numbers[0, 1])


def _step_and_time(line: bytes, curves: RunCurves) -> tuple[int, float] | None:
    try:
        record = parse_log_line(line.strip(), rank=0)
    except ValueError:
        return None
    if not isinstance(record, LogRecord) or record.type != LOG or not record.timestamp:
        return None
    numbers = step_numbers(record.step)
    if not numbers:
        return None
    is_list = isinstance(record.step, list)
    place = curves.place_of(numbers) if is_list else numbers[0]
    return place, float(record.timestamp)
