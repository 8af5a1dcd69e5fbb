"""NVIDIA's DLLogger by its own names, defaults and formats: `import dllogger as DLLogger` becomes this module.

    from sonde.log import dllogger as DLLogger
    from sonde.log.dllogger import JSONStreamBackend, StdOutBackend, Verbosity

    DLLogger.init(backends=[StdOutBackend(Verbosity.DEFAULT), JSONStreamBackend(Verbosity.VERBOSE, "log.json")])
    DLLogger.log(step=(epoch, iteration), data={"loss": loss})

Screen and file are as NVIDIA's, a file is begun anew unless `append=True`, and `Logger.log` without a verbosity is VERBOSE. `init` may be called
again: it replaces the logger. What differs is what sonde promises everywhere: nothing raises into training, and each record is in the file when
`log` returns.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from sonde.errors import SondeError
from sonde.log.backend import Verbosity
from sonde.log.backends.json_stream import NVIDIA_PREFIX
from sonde.log.backends.json_stream import JSONStreamBackend as _JSONStreamBackend
from sonde.log.backends.stdout import StdOutBackend as _StdOutBackend
from sonde.log.logger import Logger as _Logger

__all__ = [
    "Backend",
    "DLLLoggerAlreadyInitialized",
    "DLLoggerNotInitialized",
    "JSONStreamBackend",
    "Logger",
    "StdOutBackend",
    "Verbosity",
    "default_metric_format",
    "default_prefix_format",
    "default_step_format",
    "flush",
    "info",
    "init",
    "log",
    "metadata",
]

_current: _Logger | None = None


class DLLoggerNotInitialized(SondeError):  # noqa: N818  (NVIDIA's name)
    """A function of this module was called before `init`."""


class DLLLoggerAlreadyInitialized(SondeError):  # noqa: N818  (NVIDIA's name)
    """Never raised here: `init` replaces the logger. The name is for scripts that catch it."""


class Backend(ABC):
    """NVIDIA's base of a backend: fill in `log` and `metadata`. Any `Logger` of sonde takes it."""

    def __init__(self, verbosity: int) -> None:
        self._verbosity = verbosity

    @property
    def verbosity(self) -> int:
        """The level up to which it takes records."""
        return self._verbosity

    @abstractmethod
    def log(self, timestamp: datetime, elapsedtime: float, step: Any, data: Any) -> None:
        """Take the values of a step."""

    @abstractmethod
    def metadata(self, timestamp: datetime, elapsedtime: float, metric: str, metadata: Any) -> None:
        """Take what is said of a metric."""

    def flush(self) -> None:  # noqa: B027  most hold nothing back
        """Bring out everything that is held back."""


def default_step_format(step: Any) -> str:
    """A step as text."""
    return str(step)


def default_metric_format(metric: str, metadata: Mapping[str, Any], value: Any) -> str:
    """A metric as `name : value unit`."""
    text = ("{" + metadata.get("format", "") + "}").format(value) if value is not None else "None"
    return f"{metric} : {text} {metadata.get('unit', '')}"


def default_prefix_format(timestamp: datetime) -> str:
    """What a line begins with."""
    return f"DLL {timestamp} - "


Logger: Final = functools.partial(_Logger, default_verbosity=Verbosity.VERBOSE)
StdOutBackend: Final = functools.partial(
    _StdOutBackend,
    step_format=default_step_format,
    metric_format=default_metric_format,
    prefix_format=default_prefix_format,
)
JSONStreamBackend: Final = functools.partial(_JSONStreamBackend, append=False, prefix=NVIDIA_PREFIX)


def init(backends: Iterable[Any]) -> None:
    """Log into these backends from now on; those before are closed."""
    global _current
    if _current is not None:
        _current.close()
    _current = _Logger(backends)


def log(step: Any, data: Any, verbosity: int = Verbosity.DEFAULT) -> None:
    """Record values at a step."""
    _logger().log(step, data, verbosity)


def metadata(metric: str, metadata: Any) -> None:
    """Say what a metric is."""
    _logger().metadata(metric, metadata)


def info(data: Any) -> None:
    """Record anything once."""
    _logger().info(data)


def flush() -> None:
    """Bring out everything that is held back."""
    _logger().flush()


def _logger() -> _Logger:
    if _current is None:
        raise DLLoggerNotInitialized("DLLogger not initialized", hint="Initialize DLLogger with init(backends)")
    return _current
