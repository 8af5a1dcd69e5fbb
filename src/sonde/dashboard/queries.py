"""What a request asks for, and the simple answers: JSON, and tables of values."""

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from sonde.dashboard.folder import RunFolder
from sonde.dashboard.frame import number, whole
from sonde.errors import SettingError, SondeError
from sonde.report.axes import STEP, open_axis
from sonde.report.panels import Stretch, View

_MAX_METRICS: Final = 40
_CSV_ROWS: Final = 5000
_MAX_COMPARED: Final = 64
_MAX_POINTS: Final = 4000


def json_answer(value: object) -> Response:
    """Return a value as JSON."""
    return Response(orjson.dumps(value), media_type="application/json")


def run_names(request: Request) -> list[str]:
    """Return the runs that a request names; raise SettingError if they are too many."""
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    if len(names) > _MAX_COMPARED:
        raise SettingError(f"at most {_MAX_COMPARED} runs are compared at once, not {len(names)}")
    return names


def metric_names(request: Request) -> list[str]:
    """Return the metrics that a request names; raise SettingError if they are too many."""
    metrics = list(dict.fromkeys(request.query_params.getlist("metric")))
    if len(metrics) > _MAX_METRICS:
        raise SettingError(f"at most {_MAX_METRICS} metrics at once, not {len(metrics)}")
    return metrics


def view_of(request: Request, points: int) -> View:
    """Return how a request wants its curves drawn."""
    query = request.query_params
    rank = query.get("rank")
    return View(
        stretch=_stretch(request, points),
        axis=query.get("x", STEP),
        smooth=number(query.get("smooth"), 0.0) or 0.0,
        rank=whole(rank) if rank else None,
    )


def csv_rows(
    folder: RunFolder, names: Sequence[str], metrics: Sequence[str], axis: str, rank: int | None
) -> Iterator[bytes]:
    """Yield the lines of a table of all values, some thousand at a time."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["run", "metric", axis, "value"])
    for name in names:
        for metric in metrics:
            with contextlib.suppress(SondeError, OSError), folder.open(name) as run:
                curve = run.find(metric, rank)
                if curve is None:
                    continue
                over = open_axis(axis, run.curves(), run.path).of(curve)
                # A table program runs a cell that begins with one of these as a formula.
                titles = [f"'{text}" if text[:1] in "=+-@\t\r" else text for text in (name, metric)]
                for start in range(0, len(over), _CSV_ROWS):
                    part = over.at(slice(start, start + _CSV_ROWS))
                    places = zip(part.steps.tolist(), part.values.tolist(), strict=True)
                    writer.writerows([*titles, place, value] for place, value in places)
                    yield out.getvalue().encode("utf-8", "replace")
                    out.seek(0)
                    out.truncate()
    yield out.getvalue().encode("utf-8", "replace")


def _stretch(request: Request, points: int) -> Stretch:
    query = request.query_params
    first = number(query.get("from"), None)
    last = number(query.get("to"), None)
    points = whole(query.get("points"), points)
    if not 2 <= points <= _MAX_POINTS:
        raise SettingError(f"points is 2 to {_MAX_POINTS}, not {points}")
    return Stretch(first, last, points)
