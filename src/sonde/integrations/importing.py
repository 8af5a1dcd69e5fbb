"""Convert logs of other tools into a run directory that all sonde readers understand.

    Source(...)                 what a reader of one format returns: settings, and points one by one
    write_run(source, out)      writes the run; returns the number of records
    trainer_state_source(path)  `trainer_state.json` of `transformers.Trainer`: what it logged, by step; it has no times

Metric names are converted: `train/loss` becomes `train.loss`. Values are kept bit for bit, with their original steps
and times. Anything unreadable is left out, reported by the caller and noted in the run. The manifest is written last,
so an incomplete import does not count as a run.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from sonde.errors import RunError, SettingError
from sonde.log.backend import LOG as LOG_TYPE
from sonde.records import disk
from sonde.records.append import RecordFile
from sonde.records.files import read_small
from sonde.records.journal import append_event
from sonde.records.layout import LOG, RunLayout
from sonde.records.manifest import FAILED, FINISHED, Manifest, new_run_id, write_manifest

_STATE: Final = "trainer_state.json"
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d{1,18})")
_MAX_NAME: Final = 300
_MAX_STEP: Final = 1 << 63
_MAX_VALUES: Final = 1000
"""The maximum number of values in one merged record."""
_LAST_TIME: Final = 253_402_300_799
"""The end of the year 9999, the latest date that can be formatted."""


class Point(NamedTuple):
    """The values logged at one step."""

    step: int
    time: float | None
    """Seconds since the epoch."""
    values: dict[str, float]


@dataclass(kw_only=True, slots=True)
class Source:
    """One run of another tool. All fields except `path` and `points` are filled while the points are read."""

    path: Path
    points: Iterable[Point] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    """Descriptions of what could not be read."""
    failed: bool = False
    """Whether the tool recorded that the training failed."""

    def note(self, damage: str) -> None:
        """Note something that could not be read. Only the first 20 are kept."""
        if len(self.damage) < 20:
            self.damage.append(damage)
        elif len(self.damage) == 20:
            self.damage.append("and more")


def write_run(source: Source, out: Path) -> int:
    """Write one run and return the number of log records. Raises `RunError` if `out` is not empty, `SettingError` if there is no data."""
    layout = RunLayout(out.absolute())
    try:
        if any(out.iterdir()):
            raise RunError(f"{out} is not empty", hint="give --out a new directory")
    except FileNotFoundError:
        pass
    records = _records(source)
    first = next(records, None)
    if first is None:
        raise SettingError(f"there are no numbers in {source.path}", cause="; ".join(source.damage) or None)
    disk.make_directories(layout.records)
    num_records, started = 0, first["timestamp"] or source.path.stat().st_mtime
    ended = started
    with RecordFile(layout.record_file(LOG, 0)) as log:
        for record in chain([first], records):
            num_records += log.append(record)
            ended = max(ended, record["timestamp"] or started)
        if log.num_lost:
            lost = f"{log.num_lost} records could not be written to {out}"
            raise RunError(lost, hint="check that the disk has space")
    told = {"path": str(source.path.absolute()), "num_records": num_records, "damage": source.damage}
    append_event(layout.root, "import", time=ended, **told)
    manifest = Manifest(
        run_id=new_run_id(),
        created=started,
        ended=ended,
        status=FAILED if source.failed else FINISHED,
        reason=f"imported from {source.path}",
        settings=source.settings or None,
    )
    write_manifest(layout.root, manifest)
    return num_records


def usual_time(seconds: float | None) -> float | None:
    """Return the time if a calendar can represent it, otherwise None (damaged files contain such values)."""
    return seconds if seconds is not None and 0 < seconds < _LAST_TIME else None


def usual_name(name: str) -> str:
    """Convert a metric's name to sonde's convention: parts joined with dots."""
    return name.strip("/")[:_MAX_NAME].replace("/", ".")


def is_number(value: object) -> bool:
    """Return whether it is a number that fits a float, including NaN and infinity."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 1023)


def folders_with(folder: Path, holding: str) -> Iterator[tuple[Path, list[Path]]]:
    """Yield every folder at or below `folder` with files whose names contain `holding`, and those files sorted.

    Symbolic links are not followed.
    """
    for root, folders, names in os.walk(folder):
        folders.sort()
        found = sorted(name for name in names if holding in name)
        if found:
            yield Path(root), [Path(root, name) for name in found]


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


def trainer_state_source(path: Path) -> Source:
    """Read the state from a file, a checkpoint, or the newest checkpoint in an output directory."""
    source = Source(path=_find_state(path))
    source.points = _state_points(source)
    return source


def _find_state(path: Path) -> Path:
    if not path.is_dir():
        return path
    numbers = [(int(match[1]), one) for one in path.iterdir() if (match := _CHECKPOINT.fullmatch(one.name))]
    places = [path, *(one for _, one in sorted(numbers, reverse=True))]
    return next((one / _STATE for one in places if (one / _STATE).is_file()), path / _STATE)


def _state_points(source: Source) -> Iterator[Point]:
    try:
        state: Any = json.loads(read_small(source.path, follow=True))
        history = state.pop("log_history")
    except OSError as error:
        source.note(error.strerror or str(error))
        return
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        source.note(f"it is no state of a Trainer: {error}")
        return
    source.settings |= {name: value for name, value in state.items() if isinstance(value, (str, int, float))}
    for entry in history if isinstance(history, list) else []:
        step = entry.get("step") if isinstance(entry, dict) else None
        if not isinstance(step, int):
            source.note("an entry has no step")
            continue
        values = {usual_name(name): float(one) for name, one in entry.items() if name != "step" and is_number(one)}
        yield Point(step, None, values)
