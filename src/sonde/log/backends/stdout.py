"""Screen output in TCAP's format (screen.py): in color on a terminal, plain when piped.

Each line goes to the current `sys.stdout` in one write and is flushed, so `tail -f` shows it as it is logged. Only rank
0 prints by default. A closed or broken output is counted, not raised.

Your own functions may format a line, as in DLLogger: `step_format(step)`, `metric_format(metric, metadata, value)` and
`prefix_format(timestamp)`; TCAP's `prefix_format(rank, timestamp)` works too.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from typing_extensions import Unpack

from sonde.log.backend import LOG, METADATA, Backend, BackendOptions, Record, Verbosity
from sonde.log.screen import LineFormats, learn, line_parts


class StdOutBackend(Backend):
    """Prints LOG records as lines and INFO as text; METADATA affects the format of later lines."""

    def __init__(
        self,
        verbosity: int = Verbosity.DEFAULT,
        step_format: Callable[[Any], str] | None = None,
        metric_format: Callable[[str, Mapping[str, Any], Any], str] | None = None,
        prefix_format: Callable[..., str] | None = None,
        **options: Unpack[BackendOptions],
    ) -> None:
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
    """Point a broken pipe at /dev/null; otherwise Python fails at exit on what is still buffered."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, out.fileno())
        os.close(nothing)
    except (OSError, ValueError):
        pass


class LoggingBackend(Backend):
    """Passes records to a standard library logger, so that they go where the rest of the program logs to.

    A LOG record becomes a screen line without prefix and time (handlers add their own), INFO becomes its text; the
    whole record is attached as `record.sonde`. Only rank 0 writes by default.
    """

    def __init__(
        self,
        verbosity: int = Verbosity.DEFAULT,
        logger: logging.Logger | str = "sonde.log",
        level: int = logging.INFO,
        **options: Unpack[BackendOptions],
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
        text = "".join(line_parts(record, self._metadata)[1:]) if record["type"] == LOG else str(record["data"])
        self._logger.log(self._level, "%s", text.rstrip(), extra={"sonde": record})
