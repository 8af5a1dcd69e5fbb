"""What is the same for every host: which versions will do, what the run leaves out, and checkpoints that the host writes itself."""

import logging
import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from sonde.data.skip_list import SkipList
from sonde.errors import MissingDependency, SettingError
from sonde.flight.recorder import FlightRecorder
from sonde.flight.samples import skipped
from sonde.flight.settings import FlightSettings
from sonde.forensics.host_checkpoints import EVENT
from sonde.records.atomic import write_file
from sonde.records.files import read_small
from sonde.records.values import decode, encode
from sonde.run import Run

_WATCH: Final = "sonde.json"
_MAX_BYTES: Final = 64 << 20

_logger = logging.getLogger("sonde")


def require(package: str, oldest: str) -> None:
    """Raises when a package is not there, or older than what works."""
    try:
        found = version(package)
    except PackageNotFoundError:
        raise MissingDependency(package, needed_for=f"sonde.integrations for {package}", extra=package) from None
    if _numbers(found) < _numbers(oldest):
        raise SettingError(
            f"sonde works with {package} {oldest} and newer, and {found} is installed",
            hint=f"pip install -U '{package}>={oldest}'",
        )


def left_out(run: Run) -> SkipList:
    """The samples that a run leaves out."""
    return SkipList() if run.is_replay else skipped(run.layout)


def note_checkpoint(run: Run, host: str, step: int, path: str | os.PathLike[str]) -> None:
    """The host has written a checkpoint of its own: `sonde rollback` may go back to it."""
    run.event(EVENT, host=host, step=step, path=str(Path(path).absolute()))


def check_settings(settings: FlightSettings | None) -> FlightSettings | None:
    """Settings that a host can follow."""
    if settings is not None and settings.on_event == "heal":
        raise SettingError(
            'on_event="heal" works in a loop of one\'s own, not in a host',
            cause="a host counts updates and draws batches itself, and neither can go back",
            hint='on_event="stop"; then `sonde rollback RUN --step N --apply`, and start again',
        )
    return settings


def go_on(flight: FlightRecorder, num_updates: int) -> None:
    """The host goes on after this many updates: kept states from after that belong to what was given up."""
    flight.num_updates = num_updates
    if flight.parts.run.rank == 0:
        flight.parts.run.event("resume", step=num_updates)
        folder = flight.parts.store.folder
        for step in folder.steps():
            if step > num_updates:
                folder.remove(step)


def save_watch(run: Run, folder: Path) -> None:
    """Put what the watch knows into a checkpoint of the host, so that it need not learn anew after a resume."""
    if folder.is_dir():
        write_file(folder / _WATCH, encode(run.spikes().state_dict(), max_bytes=_MAX_BYTES))


def load_watch(run: Run, folder: Path) -> None:
    """Take it from there; without it the watch learns anew."""
    try:
        state: Any = decode(read_small(folder / _WATCH, max_bytes=_MAX_BYTES))
        run.spikes().load_state_dict(state)
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        _logger.warning("what the watch knew cannot be read from %s: %s; it learns anew", folder, error)


def _numbers(text: str) -> list[int]:
    return [int(one) for one in re.findall(r"\d+", text)[:3]]
