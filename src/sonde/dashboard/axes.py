"""Steps as something else: tokens seen, or seconds since the run began. What is not known of a run is None, never guessed.

Tokens are the sum of what every update recorded, or a logged count. Times are those of log records: of some hundred spread over the file,
since the records in between differ by little.
"""

import os
from pathlib import Path
from typing import Final

import numpy as np

from sonde.log.backend import LOG
from sonde.log.lines import parse_log_line
from sonde.log.record import LogRecord
from sonde.log.steps import step_numbers
from sonde.records import layout
from sonde.records.files import open_regular
from sonde.records.layout import RunLayout
from sonde.report.curve import Curve, Floats
from sonde.report.run_curves import RunCurves

AXES: Final = ("step", "tokens", "seconds")
_TOKENS: Final = ("tokens", "train.tokens", "num_tokens", "tokens_seen", "train.num_tokens")
_NUM_TIMES: Final = 400
_MAX_LINE: Final = 1 << 16


def moved_to(axis: str, curve: Curve, curves: RunCurves, run: Path) -> Curve | None:
    """The curve over another axis; None when the run does not say where its steps are on it."""
    if axis == "step":
        return curve
    known = _tokens(curves) if axis == "tokens" else _times(run)
    if known is None or len(known[0]) < 2:
        return None
    at = np.interp(curve.steps, *known)
    return Curve(name=curve.name, steps=at.astype(np.int64) if axis == "tokens" else at, values=curve.values)  # type: ignore[arg-type]  # seconds are no integers, and nothing here needs them to be


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
                while found and found[-1][0] >= seen[0]:  # made again after a restart, or read already
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
