"""Screen output in TCAP's format: in color on a terminal, plain when piped.

    TCAPPDLL 2026-11-15 19:46:47.226705 - Epoch: 0 Iteration: 1  train.loss : 0.01  train.ips :
        3.000 imgs/s

A metric is `name : value unit`; `unit` and `format` come from its metadata. A format that does not
fit its value is ignored. A record is always one line: newlines inside values are shown as `\\n`.
Time is local to the machine that recorded it.

Each line goes to the current `sys.stdout` in one write and is flushed, so `tail -f` shows it as it
is logged. Only rank 0 prints by default. A closed or broken output is counted, not raised.

Your own functions may format a line, as in DLLogger: `step_format(step)`, `metric_format(metric,
metadata, value)` and `prefix_format(timestamp)`; TCAP's `prefix_format(rank, timestamp)` works too.
"""

import datetime
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TextIO

from sonde.log.backend import LOG, METADATA, Backend, Record, Verbosity
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


_NO_FORMATS: Final = LineFormats()


def line_parts(record: Record, metadata: Metadata, formats: LineFormats = _NO_FORMATS) -> list[str]:
    """Return the parts of a LOG record's line: the prefix, the step, and each metric."""
    # the time without its zone, as TCAP prints it
    prefix = f"{PREFIX} {str(record['datetime'])[:26]} - "
    if formats.prefix is not None:
        # as DLLogger passes it
        when = datetime.datetime.fromtimestamp(record["timestamp"])  # noqa: DTZ006
        takes_rank = len(inspect.signature(formats.prefix).parameters) > 1
        prefix = formats.prefix(record["rank"], when) if takes_rank else formats.prefix(when)
    step = (formats.step or step_text)(record["step"])
    metric = formats.metric or _metric_text
    values = [
        f" {metric(name, metadata.get(name) or {}, value)}"
        for name, value in record["data"].items()
    ]
    return [prefix, step, *(values or [" "])]


def _metric_text(name: str, metadata: Mapping[str, Any], value: object) -> str:
    return f"{name} : {value_text(value, metadata.get('format'))} {metadata.get('unit') or ''}"


def value_text(value: object, spec: object = None) -> str:
    """Return a value as text on one line, using its format (`:.3f`) if that fits. Never raises."""
    if spec and isinstance(spec, str) and not _TOO_WIDE.search(spec):
        try:
            return _one_line(("{" + spec + "}").format(value))
        except Exception:  # noqa: BLE001, S110
            # a format from outside may fail in any way; the bare value is the fallback
            pass
    if type(value) in PLAIN_TYPES:
        return _one_line(str(value))
    # exact types only: subclasses have their own str
    if type(value) in (list, tuple) and PLAIN_TYPES.issuperset(map(type, value)):  # type: ignore[call-overload]
        return _one_line(str(value))
    try:
        return _one_line(str(decode(encode(value))))
    except Exception as error:  # noqa: BLE001  foreign objects may raise anything; the line says so
        return f"{type(value).__name__} ({type(error).__name__})"


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n") if "\n" in text or "\r" in text else text


class StdOutBackend(Backend):
    """Prints LOG records as lines and INFO as text; METADATA affects the format of later lines.

    ```python
    from sonde import Logger, StdOutBackend

    with Logger(StdOutBackend()) as logger:
        logger.metadata("train.loss", {"unit": "nats", "format": ":.3f"})
        logger.log(step=1, data={"train.loss": 4.2345})
    ```
    """

    def __init__(
        self,
        verbosity: int = Verbosity.DEFAULT,
        step_format: Callable[[Any], str] | None = None,
        metric_format: Callable[[str, Mapping[str, Any], Any], str] | None = None,
        prefix_format: Callable[..., str] | None = None,
        **options: Any,
    ) -> None:
        """Prepare to print.

        Args:
            verbosity: The level of this backend.
            step_format: Formats a step.
            metric_format: Formats a metric: (name, its metadata, its value).
            prefix_format: Formats what stands before the step.
            options: Those of `Backend`: `every_n`, `every_seconds`, `all_ranks`.
        """
        super().__init__(verbosity, **options)
        self._metadata: dict[str, dict[str, Any]] = {}
        self._formats = LineFormats(step_format, metric_format, prefix_format)

    def write(self, record: Record) -> None:
        """Print one record."""
        if record["type"] == METADATA:
            learn(self._metadata, record)
            return
        out = sys.stdout
        if out is None:  # a process without a console
            self.lose(1, "there is no standard output")
            return
        try:
            if record["type"] != LOG:
                out.write(f"{record['data']}\n")
            else:
                parts = line_parts(record, self._metadata, self._formats)
                if out.isatty() and not any(self._formats) and not os.environ.get("NO_COLOR"):
                    _write_in_colour(*parts)
                else:
                    out.write("".join(parts) + "\n")
            out.flush()
        except BrokenPipeError:
            _let_go(out)
            raise


def _write_in_colour(prefix: str, step: str, *metrics: str) -> None:
    # Imported here, because a piped log does not need rich.
    from rich.console import Console
    from rich.text import Text

    pieces = [(prefix, "dim"), (step, "bold")]
    for metric in metrics:
        name, colon, value = metric.partition(" : ")
        pieces += [(name + colon, "cyan"), (value, "")]
    Console(highlight=False, soft_wrap=True).print(Text.assemble(*pieces))


def _let_go(out: TextIO) -> None:
    """Point a broken pipe at /dev/null; otherwise Python fails at exit on what is still
    buffered.
    """
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, out.fileno())
        os.close(nothing)
    except (OSError, ValueError):
        pass


class LoggingBackend(Backend):
    """Passes records to a standard library logger, so that they go where the rest of the program
    logs to.

    A LOG record becomes a screen line without prefix and time (handlers add their own), INFO
    becomes its text; the whole record is attached as `record.sonde`. Only rank 0 writes by default.

    ```python
    import logging

    from sonde import Logger
    from sonde.log import LoggingBackend

    logging.basicConfig(level=logging.INFO)
    with Logger(LoggingBackend(logger="training")) as logger:
        logger.log(step=1, data={"loss": 4.5})
    ```
    """

    def __init__(
        self,
        verbosity: int = Verbosity.DEFAULT,
        logger: logging.Logger | str = "sonde.log",
        level: int = logging.INFO,
        **options: Any,
    ) -> None:
        super().__init__(verbosity, **options)
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level = level
        self._metadata: dict[str, dict[str, Any]] = {}

    def write(self, record: Record) -> None:
        """Pass on one record."""
        if record["type"] == METADATA:
            learn(self._metadata, record)
            return
        if not self._logger.isEnabledFor(self._level):
            return
        if record["type"] == LOG:
            text = "".join(line_parts(record, self._metadata)[1:])
        else:
            text = str(record["data"])
        self._logger.log(self._level, "%s", text.rstrip(), extra={"sonde": record})
