"""Code shared by all hosts: version checks, skipped samples, and checkpoints that the host writes itself."""

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
from sonde.forensics.rollback import HOST_CHECKPOINT
from sonde.records.files import read_small, write_file
from sonde.records.values import decode, encode
from sonde.run import Run

_WATCH: Final = "sonde.json"
_MAX_BYTES: Final = 64 << 20

_logger = logging.getLogger("sonde")


def require(package: str, oldest: str) -> None:
    """Raise an error if a package is missing or older than `oldest`."""
    try:
        found = version(package)
    except PackageNotFoundError:
        raise MissingDependency(package, needed_for=f"sonde.integrations for {package}", extra=package) from None
    if _numbers(found) < _numbers(oldest):
        told = f"sonde works with {package} {oldest} and newer, and {found} is installed"
        raise SettingError(told, hint=f"pip install -U '{package}>={oldest}'")


def left_out(run: Run) -> SkipList:
    """Return the samples that a run skips."""
    return SkipList() if run.is_replay else skipped(run.layout)


def note_checkpoint(run: Run, host: str, step: int, path: str | os.PathLike[str]) -> None:
    """Record a checkpoint written by the host, so that `sonde rollback` can go back to it."""
    run.event(HOST_CHECKPOINT, host=host, step=step, path=str(Path(path).absolute()))


def check_settings(settings: FlightSettings | None) -> FlightSettings | None:
    """Return the settings, or raise an error if a host cannot support them."""
    if settings is not None and settings.on_event == "heal":
        hint = 'on_event="stop"; then `sonde rollback RUN --step N --apply`, and start again'
        raise SettingError('on_event="heal" works only in a loop of your own, which can go back', hint=hint)
    return settings


def go_on(flight: FlightRecorder, num_updates: int) -> None:
    """Continue after `num_updates` updates, and discard kept states from later steps, which belong to the abandoned part of the run."""
    flight.num_updates = num_updates
    if flight.parts.run.rank == 0:
        flight.parts.run.event("resume", step=num_updates)
        folder = flight.parts.store.folder
        for step in folder.steps():
            if step > num_updates:
                folder.remove(step)


def save_watch(run: Run, folder: Path) -> None:
    """Save the state of the spike recorder in the host's checkpoint, so that it need not warm up again after a resume."""
    if folder.is_dir():
        write_file(folder / _WATCH, encode(run.spikes().state_dict(), max_bytes=_MAX_BYTES))


def load_watch(run: Run, folder: Path) -> None:
    """Restore the state saved by `save_watch`. If there is none, the spike recorder starts fresh."""
    try:
        state: Any = decode(read_small(folder / _WATCH, max_bytes=_MAX_BYTES))
        run.spikes().load_state_dict(state)
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        _logger.warning("what the watch knew cannot be read from %s: %s; it learns anew", folder, error)


def _numbers(text: str) -> list[int]:
    return [int(one) for one in re.findall(r"\d+", text)[:3]]
