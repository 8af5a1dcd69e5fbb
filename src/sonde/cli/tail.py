"""`sonde tail RUN`: show the last records of a run, then each new one as it is written."""

import sys
import time
from pathlib import Path
from typing import Any, Final

from sonde.cli.terminal import data_output, json_text, picked
from sonde.errors import DamagedFile, RunNotFound, SettingError
from sonde.log.backend import LOG, METADATA
from sonde.log.files import run_directory
from sonde.log.follow import LogFollower
from sonde.log.lines import LogRecord
from sonde.log.screen import screen_line, value_text
from sonde.records.catalog import run_status
from sonde.records.manifest import RUNNING, read_manifest

_POLL_SECONDS: Final = 0.2


def tail(run: Path, /, *, lines: int = 10, once: bool = False, json: bool = False) -> None:
    """Show the last records of a run, then each new one as it is written.

    Parameters
    ----------
    run
        A run directory, followed until the run ends, or a log file, followed until interrupted.
    lines
        Number of existing records to show first.
    once
        Show the existing records and exit.
    json
        Print one JSON object per record instead of text.
    """
    if lines < 0:
        raise SettingError(f"--lines is 0 or more, not {lines}")
    follower = LogFollower(run)
    metadata: dict[str, dict[str, Any]] = {}
    is_first = True
    while True:
        ended = once or _has_ended(run)  # before polling, so that records written before the end are still shown
        try:
            records = follower.poll()
        except RunNotFound:
            if ended or not run.exists():
                raise
            records = []
        for record in records:
            if record.type == METADATA and record.metric is not None and isinstance(record.data, dict):
                metadata.setdefault(record.metric, {}).update(record.data)
        shown = records if json else [record for record in records if record.type != METADATA]
        for record in shown[max(len(shown) - lines, 0) :] if is_first else shown:
            (data_output() if json else sys.stdout).write(_text(record, metadata, json=json) + "\n")
        sys.stdout.flush()
        is_first = is_first and not records
        if ended:
            return
        time.sleep(_POLL_SECONDS)


def _has_ended(run: Path) -> bool:
    """Return whether the run in this directory has ended. A bare log file never does."""
    directory = run_directory(run)
    if directory is None:
        return False
    try:
        return run_status(directory, read_manifest(directory)) != RUNNING
    except DamagedFile:
        return False


def _text(record: LogRecord, metadata: dict[str, dict[str, Any]], *, json: bool) -> str:
    if json:
        return json_text(picked(record, *record.__struct_fields__)).rstrip("\n")
    if record.type == LOG and isinstance(record.data, dict):
        rank = f"rank {record.rank} " if record.rank else ""
        return rank + screen_line({"datetime": record.datetime, "step": record.step, "data": record.data}, metadata)
    return value_text(record.data)
