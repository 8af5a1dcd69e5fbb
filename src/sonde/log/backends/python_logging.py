"""A bridge to Python's `logging`: what is logged here also goes where the rest of the program logs to.

A LOG record becomes the line of the screen without its prefix and time (the handlers have their own), INFO its text; the
whole record is attached as `record.sonde`. Only rank 0 writes unless told otherwise.
"""

import logging
from typing import Any, final

from typing_extensions import Unpack

from sonde.log.backend import LOG, METADATA, Backend, BackendOptions, Record, Verbosity
from sonde.log.screen import content_pieces, learn


@final
class LoggingBackend(Backend):
    """Hands records to a logger of the standard library."""

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
        """Hand over one record."""
        if record["type"] == METADATA:
            learn(self._metadata, record)
            return
        if not self._logger.isEnabledFor(self._level):
            return
        if record["type"] == LOG:
            text = "".join([piece.text for piece in content_pieces(record, self._metadata)])
        else:
            text = str(record["data"])
        self._logger.log(self._level, "%s", text.rstrip(), extra={"sonde": record})
