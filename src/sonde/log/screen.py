"""Format one record as one line for people, compatible with parsers of TCAP's screen output.

    TCAPPDLL 2026-11-15 19:46:47.226705 - Epoch: 0 Iteration: 1  train.loss : 0.01  train.ips : 3.000 imgs/s

A metric is `name : value unit`; `unit` and `format` come from its metadata. A format that does not fit its value is
ignored. A record is always one line: newlines inside values are shown as `\\n`. Time is local to the machine that
recorded it.
"""

import datetime
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sonde.log.backend import Record
from sonde.log.device import PLAIN_TYPES
from sonde.log.steps import step_text
from sonde.records.values import decode, encode

PREFIX: Final = "TCAPPDLL"

Metadata = Mapping[str, Mapping[str, Any]]
"""The metadata of each metric, by name."""

_TOO_WIDE: Final = re.compile(r"\d{4}|.{40}")
"""Reject wide formats: one from a file could ask for a gigabyte of spaces."""


def learn(known: dict[str, dict[str, Any]], record: Record) -> None:
    """Add the metadata of a METADATA record to `known`."""
    if isinstance(record["metadata"], dict):
        known.setdefault(record["metric"], {}).update(record["metadata"])


class LineFormats(NamedTuple):
    """A user's functions for the parts of a line; None keeps the default."""

    step: Callable[[Any], str] | None = None
    metric: Callable[[str, Mapping[str, Any], Any], str] | None = None
    prefix: Callable[..., str] | None = None


def screen_line(record: Record, metadata: Metadata) -> str:
    """Return a LOG record as one line, without the newline."""
    return "".join(line_parts(record, metadata))


def line_parts(record: Record, metadata: Metadata, formats: LineFormats | None = None) -> list[str]:
    """Return the parts of a LOG record's line: the prefix, the step, and each metric."""
    prefix = f"{PREFIX} {str(record['datetime'])[:26]} - "  # the time without its zone, as TCAP prints it
    formats = formats or LineFormats()
    if formats.prefix is not None:
        when = datetime.datetime.fromtimestamp(record["timestamp"])  # noqa: DTZ006  as DLLogger passes it
        takes_rank = len(inspect.signature(formats.prefix).parameters) > 1
        prefix = formats.prefix(record["rank"], when) if takes_rank else formats.prefix(when)
    step = step_text(record["step"]) if formats.step is None else formats.step(record["step"])
    metric = formats.metric or _metric_text
    values = [f" {metric(name, metadata.get(name) or {}, value)}" for name, value in record["data"].items()]
    return [prefix, step, *(values or [" "])]


def _metric_text(name: str, metadata: Mapping[str, Any], value: object) -> str:
    return f"{name} : {value_text(value, metadata.get('format'))} {metadata.get('unit') or ''}"


def value_text(value: object, spec: object = None) -> str:
    """Return a value as text on one line, using its format (`:.3f`) if that fits. Never raises."""
    if spec and isinstance(spec, str) and not _TOO_WIDE.search(spec):
        try:
            return _one_line(("{" + spec + "}").format(value))
        except Exception:  # noqa: BLE001, S110  a format from outside may fail in any way; the bare value is the fallback
            pass
    if type(value) in PLAIN_TYPES:
        return _one_line(str(value))
    if type(value) in (list, tuple) and PLAIN_TYPES.issuperset(map(type, value)):  # type: ignore[call-overload]  # exact types only: subclasses have their own str
        return _one_line(str(value))
    try:
        return _one_line(str(decode(encode(value))))
    except Exception as error:  # noqa: BLE001  foreign objects may raise anything; the line says so
        return f"{type(value).__name__} ({type(error).__name__})"


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n") if "\n" in text or "\r" in text else text
