"""Convert logs of other tools into a run directory that all sonde readers understand.

    write_run(source, out)      write what a reader of `curves` found

The loss is judged by the rules that watch a training, so the run has the events that a recorder
would have noticed in its mean loss.

Metric names are converted: `train/loss` becomes `train.loss`. Values are kept bit for bit, with
their original steps and times. Anything unreadable is left out, reported by the caller and noted in
the run. The manifest is written last, so an incomplete import does not count as a run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from sonde.curves.curve_events import find_curve_events
from sonde.curves.loss_curves import loss_curve
from sonde.curves.names import is_loss
from sonde.curves.own_runs import IMPORTED
from sonde.curves.points import Point, Source
from sonde.errors import RunError, SettingError
from sonde.log.backend import LOG as LOG_TYPE
from sonde.records import disk
from sonde.records.append import RecordFile
from sonde.records.journal import append_event
from sonde.records.layout import LOG, SPIKES, RunLayout
from sonde.records.manifest import FAILED, FINISHED, Manifest, new_run_id, write_manifest
from sonde.spikes.detectors import Event
from sonde.spikes.spike_records import SPIKE, SPIKE_END, VERSION

_MAX_STEP: Final = 1 << 63
_MAX_VALUES: Final = 1000
"""The maximum number of values in one merged record."""


class Written(NamedTuple):
    """What was written of one run."""

    num_records: int
    """The number of log records."""
    num_events: int
    """The number of events that the rules found in its loss."""


def write_run(source: Source, out: Path) -> Written:
    """Write one run. Raises RunError if `out` is not empty, SettingError if there is no data."""
    layout = RunLayout(out.absolute())
    try:
        if any(out.iterdir()):
            raise RunError(f"{out} is not empty", hint="give --out a new directory")
    except FileNotFoundError:
        pass
    records = _records(source)
    first = next(records, None)
    if first is None:
        raise SettingError(
            f"there are no numbers in {source.path}", cause="; ".join(source.damage) or None
        )
    disk.make_directories(layout.records)
    num_records = 0
    losses: list[Point] = []
    started = first["timestamp"] or source.path.stat().st_mtime
    ended = started
    with RecordFile(layout.record_file(LOG, 0)) as log:
        for record in chain([first], records):
            num_records += log.append(record)
            ended = max(ended, record["timestamp"] or started)
            of_losses = {name: value for name, value in record["data"].items() if is_loss(name)}
            if of_losses:
                losses.append(Point(record["step"], record["timestamp"], of_losses))
        _check_written(log, out)
    events = _events_of(losses)
    _write_events(layout, events, losses, ended)
    values = {
        "path": str(source.path.absolute()),
        "format": source.format,
        "num_records": num_records,
        "num_events": len(events),
        "damage": source.damage,
    }
    append_event(layout.root, "import", time=ended, **values)
    manifest = Manifest(
        run_id=new_run_id(),
        created=started,
        ended=ended,
        status=FAILED if source.failed else FINISHED,
        reason=f"{IMPORTED}{source.path}",
        settings=source.settings or None,
    )
    write_manifest(layout.root, manifest)
    return Written(num_records, len(events))


def _check_written(file: RecordFile, out: Path) -> None:
    if file.num_lost:
        lost = f"{file.num_lost} records could not be written to {out}"
        raise RunError(lost, hint="check that the disk has space")


def _events_of(losses: Sequence[Point]) -> list[Event]:
    """Return the events of the training loss."""
    curve = loss_curve(losses)
    return [] if curve is None else find_curve_events(curve.steps, curve.values)


def _write_events(
    layout: RunLayout, events: Sequence[Event], losses: Sequence[Point], ended: float
) -> None:
    """Write events as a spike recorder would have, without samples."""
    if not events:
        return
    times = {point.step: point.time for point in losses if point.time is not None}
    with RecordFile(layout.record_file(SPIKES, 0)) as file:
        for event in events:
            time = times.get(event.first_step, ended)
            head = {"version": VERSION, "step": event.first_step, "time": time, "rank": 0}
            beginning = asdict(replace(event, last_step=event.first_step, num_bad=1))
            step = {"step": event.first_step, "loss": event.value}
            file.append({"type": SPIKE, **head, "event": beginning, "steps": [step]})
            file.append({"type": SPIKE_END, **head, "over": True, "event": asdict(event)})
        _check_written(file, layout.root)


def _records(source: Source) -> Iterator[dict[str, Any]]:
    """Yield the points as log records, with elapsed times counted from the first point."""
    began: float | None = None
    for point in _merged(source.points):
        began = point.time if began is None else began
        elapsed = None if began is None or point.time is None else point.time - began
        times = {"timestamp": point.time, "elapsedtime": elapsed}
        yield {**times, "type": LOG_TYPE, "step": point.step, "rank": 0, "data": point.values}


def _merged(points: Iterable[Point]) -> Iterator[Point]:
    """Merge consecutive points of the same step: some tools write every value separately."""
    held: Point | None = None
    for point in points:
        if not point.values or not -_MAX_STEP < point.step < _MAX_STEP:
            continue
        fits = held is not None and held.step == point.step and len(held.values) < _MAX_VALUES
        if held is not None and fits and held.values.keys().isdisjoint(point.values):
            held.values.update(point.values)
            continue
        if held is not None:
            yield held
        held = point
    if held is not None:
        yield held
