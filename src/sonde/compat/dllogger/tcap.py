"""TCAP_DLLogger's names, defaults and formats: a replacement for `tcap_dllogger`.

    from sonde.compat.dllogger.tcap import JSONStreamBackend, Logger, StdOutBackend, Verbosity

    logger = Logger([StdOutBackend(Verbosity.DEFAULT), JSONStreamBackend(Verbosity.VERBOSE,
        "tmp.json")])
    logger.log(step=(epoch, iteration), data={"loss": loss}, verbosity=Verbosity.DEFAULT)

Screen and file are those of TCAP, also where they are peculiar: `loss` and `speed` are shown as
`train.loss` and `train.speed`, and written as `QA.loss` and `QA.speed`; the metadata's `format` is
ignored; `Logger.log` without a verbosity is VERBOSE. So scripts that read TCAP's output, such as
Tecorigin's compare_loss.py, read ours. These are fixed: a step may be a number or None, a file that
is appended to keeps what it has, and nothing raises into training.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sonde.log.backend import Verbosity as _Verbosity
from sonde.log.backends.json_stream import JSONStreamBackend as _JSONStreamBackend
from sonde.log.backends.stdout import PREFIX, value_text
from sonde.log.backends.stdout import StdOutBackend as _StdOutBackend
from sonde.log.foreign_lines import TCAP
from sonde.log.logger import Logger as _Logger
from sonde.log.steps import step_text

Verbosity = _Verbosity

_SCREEN_NAMES: Final = {"loss": "train.loss", "speed": "train.speed"}


class Backend(ABC):
    """TCAP's base class of a backend: implement `log`, `info` and `metadata`. Every `Logger` of
    sonde accepts it.
    """

    def __init__(self, verbosity: int) -> None:
        self.verbosity = self._verbosity = verbosity
        """The level up to which the backend takes records."""

    @abstractmethod
    def log(self, timestamp: datetime, elapsedtime: float, step: Any, data: Any) -> None:
        """Write the values of a step."""

    @abstractmethod
    def info(self, timestamp: datetime, data: Any) -> None:
        """Write any object once."""

    @abstractmethod
    def metadata(self, timestamp: datetime, elapsedtime: float, metric: str, metadata: Any) -> None:
        """Write the metadata of a metric."""

    def flush(self) -> None:  # noqa: B027  most do not buffer
        """Write out everything that is buffered."""


def default_step_format(step: Any) -> str:
    """Return a step as text."""
    return str(step)


def format_step(step: Any) -> str:
    """Return a step as `Epoch: 0 Iteration: 1 Validation Iteration: 2`, as far as it is given."""
    return step_text(step)


def default_metric_format(metric: str, metadata: Mapping[str, Any], value: Any) -> str:
    """Return a metric as `name : value unit`."""
    return f"{_SCREEN_NAMES.get(metric, metric)} : {value_text(value)} {metadata.get('unit', '')}"


def default_prefix_format(rank: int, timestamp: datetime) -> str:
    """Return the prefix of a line."""
    del rank
    return f"{PREFIX} {timestamp} - "


Logger: Final = functools.partial(_Logger, default_verbosity=Verbosity.VERBOSE)
StdOutBackend: Final = functools.partial(
    _StdOutBackend,
    step_format=format_step,
    metric_format=default_metric_format,
    prefix_format=default_prefix_format,
)
JSONStreamBackend: Final = functools.partial(_JSONStreamBackend, prefix=TCAP)
