"""NVIDIA's DLLogger API with its names, defaults and formats: a replacement for `import dllogger as
DLLogger`.

    from sonde.compat.dllogger import nvidia as DLLogger
    from sonde.compat.dllogger.nvidia import JSONStreamBackend, StdOutBackend, Verbosity

    DLLogger.init(backends=[StdOutBackend(Verbosity.DEFAULT), JSONStreamBackend(Verbosity.VERBOSE,
        "log.json")])
    DLLogger.log(step=(epoch, iteration), data={"loss": loss})

Screen and file output are the same as NVIDIA's: a file is overwritten unless `append=True`, and
`Logger.log` without a verbosity is VERBOSE. `init` may be called again: it replaces the logger. The
differences are what sonde guarantees everywhere: nothing raises into training, and each record is
in the file when `log` returns.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from sonde.errors import SondeError
from sonde.log.backend import Verbosity as _Verbosity
from sonde.log.backends.json_stream import JSONStreamBackend as _JSONStreamBackend
from sonde.log.backends.stdout import StdOutBackend as _StdOutBackend
from sonde.log.backends.stdout import value_text
from sonde.log.foreign_lines import NVIDIA
from sonde.log.logger import Logger as _Logger

Verbosity = _Verbosity
_current: _Logger | None = None


class DLLoggerNotInitialized(SondeError):  # noqa: N818  (NVIDIA's name)
    """A function of this module was called before `init`."""


class DLLLoggerAlreadyInitialized(SondeError):  # noqa: N818  (NVIDIA's name)
    """Never raised, because `init` replaces the logger. The name exists for scripts that catch
    it.
    """


class Backend(ABC):
    """NVIDIA's base class of a backend: implement `log` and `metadata`. Every `Logger` of sonde
    accepts it.
    """

    def __init__(self, verbosity: int) -> None:
        self.verbosity = self._verbosity = verbosity
        """The level up to which the backend takes records."""

    @abstractmethod
    def log(self, timestamp: datetime, elapsedtime: float, step: Any, data: Any) -> None:
        """Write the values of a step."""

    @abstractmethod
    def metadata(self, timestamp: datetime, elapsedtime: float, metric: str, metadata: Any) -> None:
        """Write the metadata of a metric."""

    def flush(self) -> None:  # noqa: B027  most do not buffer
        """Write out everything that is buffered."""


def default_step_format(step: Any) -> str:
    """Return a step as text."""
    return str(step)


def default_metric_format(metric: str, metadata: Mapping[str, Any], value: Any) -> str:
    """Return a metric as `name : value unit`. A format that does not fit the value is ignored,
    where NVIDIA's raises.
    """
    text = "None" if value is None else value_text(value, metadata.get("format"))
    return f"{metric} : {text} {metadata.get('unit', '')}"


def default_prefix_format(timestamp: datetime) -> str:
    """Return the prefix of a line."""
    return f"DLL {timestamp} - "


Logger: Final = functools.partial(_Logger, default_verbosity=Verbosity.VERBOSE)
StdOutBackend: Final = functools.partial(
    _StdOutBackend,
    step_format=default_step_format,
    metric_format=default_metric_format,
    prefix_format=default_prefix_format,
)
JSONStreamBackend: Final = functools.partial(_JSONStreamBackend, append=False, prefix=NVIDIA)


def init(backends: Iterable[Any]) -> None:
    """Log to these backends from now on; previous ones are closed."""
    global _current
    if _current is not None:
        _current.close()
    _current = _Logger(backends)


def log(step: Any, data: Any, verbosity: int = Verbosity.DEFAULT) -> None:
    """Record values at a step."""
    _logger().log(step, data, verbosity)


def metadata(metric: str, metadata: Any) -> None:
    """Record the metadata of a metric."""
    _logger().metadata(metric, metadata)


def info(data: Any) -> None:
    """Record any object once."""
    _logger().info(data)


def flush() -> None:
    """Write out everything that is buffered."""
    _logger().flush()


def _logger() -> _Logger:
    if _current is None:
        raise DLLoggerNotInitialized(
            "DLLogger not initialized", hint="Initialize DLLogger with init(backends)"
        )
    return _current
