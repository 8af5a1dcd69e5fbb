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
    backends/   one file each: stdout, json_stream, csv, python_logging, tensorboard, wandb, mlflow

Reading, without torch:

    reading     read: the records of any log          series      one metric as arrays, fast
    lines       one line, by whichever logger         columns     decoding only what a series needs
    files       which files are meant, whose rank     table       pandas, polars, Arrow
    resume      what a run that went back supersedes  compare     how far two runs are apart
    record      LogRecord                             summary     last, best, mean
    times       the order of time over files          follow      a live log, record by record
"""

from sonde.log.backend import Backend
from sonde.log.backends.csv import CSVBackend
from sonde.log.backends.json_stream import JSONStreamBackend
from sonde.log.backends.mlflow import MLflowBackend
from sonde.log.backends.python_logging import LoggingBackend
from sonde.log.backends.stdout import StdOutBackend
from sonde.log.backends.tensorboard import TensorBoardBackend
from sonde.log.backends.wandb import WandbBackend
from sonde.log.logger import Logger
from sonde.log.queued import QueuedBackend
from sonde.log.reading import Log, read
from sonde.log.record import LogRecord
from sonde.log.series import Series, read_series
from sonde.log.verbosity import Verbosity

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
