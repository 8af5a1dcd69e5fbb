"""The structured logger: three methods, a backend for every taste, nothing lost, never in the way.

    from sonde import Logger, StdOutBackend, JSONStreamBackend, Verbosity
    logger = Logger([StdOutBackend(Verbosity.DEFAULT), JSONStreamBackend(Verbosity.VERBOSE, "tmp.json")])
    logger.log(step=(epoch, iteration), data={"loss": loss, "speed": speed})
    sonde.log.read("tmp.json").series("loss").values

Writing:

    logger      Logger: log, metadata, info           backend     what a backend is, and how to add one
    verbosity   OFF, DEFAULT, VERBOSE                 queued      backends that can be slow, behind a queue
    stamp       a record, its times and rank          pace        every_n, every_seconds: means of what is held back
    plain       any value, tensors taken out          device      copying from a device without waiting for it
    deferred    records that wait for a device        screen      a record as one line for people
    steps       what a step says                      scalars     the numbers in a record
    dllogger    NVIDIA's module by its own names      foreign     backends written for it
    backends/   one file each: stdout, json_stream, csv, python_logging, tensorboard, wandb, mlflow

Reading, without torch:

    reading     read: the records of any log          series      one metric as arrays, fast
    lines       one line, by whichever logger         columns     decoding only what a series needs
    files       which files are meant, whose rank     table       pandas, polars, Arrow
    resume      what a run that went back supersedes  compare     how far two runs are apart
    record      LogRecord                             summary     last, best, mean
    times       the order of time over files          follow      a live log, record by record

The names load lazily: a training loop that only logs does not pay for the reader, nor a reader for the backends.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sonde.log.backend import Backend as Backend
    from sonde.log.backends.csv import CSVBackend as CSVBackend
    from sonde.log.backends.json_stream import JSONStreamBackend as JSONStreamBackend
    from sonde.log.backends.mlflow import MLflowBackend as MLflowBackend
    from sonde.log.backends.python_logging import LoggingBackend as LoggingBackend
    from sonde.log.backends.stdout import StdOutBackend as StdOutBackend
    from sonde.log.backends.tensorboard import TensorBoardBackend as TensorBoardBackend
    from sonde.log.backends.wandb import WandbBackend as WandbBackend
    from sonde.log.logger import Logger as Logger
    from sonde.log.queued import QueuedBackend as QueuedBackend
    from sonde.log.reading import Log as Log
    from sonde.log.reading import read as read
    from sonde.log.record import LogRecord as LogRecord
    from sonde.log.series import Series as Series
    from sonde.log.series import read_series as read_series
    from sonde.log.verbosity import Verbosity as Verbosity

_HOMES = {
    "Backend": "sonde.log.backend",
    "CSVBackend": "sonde.log.backends.csv",
    "JSONStreamBackend": "sonde.log.backends.json_stream",
    "Log": "sonde.log.reading",
    "LogRecord": "sonde.log.record",
    "Logger": "sonde.log.logger",
    "LoggingBackend": "sonde.log.backends.python_logging",
    "MLflowBackend": "sonde.log.backends.mlflow",
    "QueuedBackend": "sonde.log.queued",
    "Series": "sonde.log.series",
    "StdOutBackend": "sonde.log.backends.stdout",
    "TensorBoardBackend": "sonde.log.backends.tensorboard",
    "Verbosity": "sonde.log.verbosity",
    "WandbBackend": "sonde.log.backends.wandb",
    "read": "sonde.log.reading",
    "read_series": "sonde.log.series",
}

__all__ = [
    "Backend",
    "CSVBackend",
    "JSONStreamBackend",
    "Log",
    "LogRecord",
    "Logger",
    "LoggingBackend",
    "MLflowBackend",
    "QueuedBackend",
    "Series",
    "StdOutBackend",
    "TensorBoardBackend",
    "Verbosity",
    "WandbBackend",
    "read",
    "read_series",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sonde.log' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
