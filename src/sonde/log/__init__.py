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
    lines       one line, by whichever logger         columns     the numbers of a file, block by block
    files       which files are meant, whose rank     table       pandas, polars, Arrow
    resume      what a run that went back supersedes  compare     how far two runs are apart
    record      LogRecord                             summary     last, best, mean
    times       the order of time over files          follow      a live log, record by record

The names load lazily: a training loop that only logs does not pay for the reader, nor a reader for the backends.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
