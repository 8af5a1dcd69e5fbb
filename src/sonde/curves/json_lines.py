"""Logs with a JSON object on every line: any JSONL, NVIDIA's DLLogger, TCAP's DLLogger, MLPerf's
MLLOG. Each reader takes lines and yields rows; a line of another kind is skipped. Pure.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from sonde.curves.points import Row, flattened, is_number
from sonde.log.backend import LOG
from sonde.log.foreign_lines import PREFIXES
from sonde.log.lines import LogRecord, parse_log_line, seconds_of_time

_MLLOG: Final = ":::MLLOG "
_MAX_LINE: Final = 1 << 20
_STEPS: Final = ("epoch", "iteration", "validation_iteration")
"""What the parts of a DLLogger step mean."""


def rows_of_json_lines(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the numbers of every line that is a JSON object, with or without words before it, as
    fairseq writes them.
    """
    for line in lines:
        start = line.find("{")
        if start < 0 or not line.rstrip().endswith("}") or len(line) > _MAX_LINE:
            continue
        document = _parsed(line[start:])
        if isinstance(document, dict):
            yield {**flattened(document), **_time_in(document)}


def _time_in(document: dict[str, Any]) -> Row:
    """Return the time of a line, where it is a date in words. Without a zone it is taken as a time
    of the machine that reads it.
    """
    for name in ("timestamp", "time", "asctime", "datetime", "date"):
        written = document.get(name)
        seconds = seconds_of_time(written) if isinstance(written, str) else None
        if seconds is not None:
            return {"timestamp": seconds}
    return {}


def rows_of_dllogger(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the records of DLLogger, TCAP's DLLogger and sonde's own logger."""
    for line in lines:
        is_ours = line.startswith("{") and '"LOG"' in line
        if not is_ours and not line.startswith(PREFIXES):
            continue
        try:
            record = parse_log_line(line.encode(errors="replace"))
        except ValueError:
            continue
        if isinstance(record, LogRecord) and record.type == LOG and isinstance(record.data, dict):
            times = {"timestamp": record.timestamp} if record.timestamp else {}
            yield {**flattened(record.data), **times, **_step_columns(record.step)}


def _step_columns(step: object) -> Row:
    if is_number(step):
        return {"step": float(step)}  # type: ignore[arg-type]  # a number
    if isinstance(step, list) and step and all(map(is_number, step)):
        if len(step) == 1:
            return {"step": float(step[0])}
        return {name: float(part) for name, part in zip(_STEPS, step, strict=False)}
    return {}


def rows_of_mllog(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the numbers of MLPerf's log lines; the step is in their metadata."""
    for line in lines:
        _, mark, written = line.partition(_MLLOG)
        document = _parsed(written) if mark and len(line) < _MAX_LINE else None
        if not isinstance(document, dict):
            continue
        key = str(document.get("key", ""))
        value = document.get("value")
        row = flattened(value) if isinstance(value, dict) else flattened({key: value})
        metadata = document.get("metadata")
        if row and isinstance(metadata, dict):
            row = {**flattened(metadata), **row}
            row.pop("lineno", None)
            if is_number(document.get("time_ms")):
                row["timestamp"] = document["time_ms"] / 1000
            yield row


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
