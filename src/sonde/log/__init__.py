"""The structured logger: three methods and many backends; no record is lost silently, and training
never waits.

    from sonde import Logger, StdOutBackend, JSONStreamBackend, Verbosity
    logger = Logger([StdOutBackend(Verbosity.DEFAULT), JSONStreamBackend(Verbosity.VERBOSE,
        "tmp.json")])
    logger.log(step=(epoch, iteration), data={"loss": loss, "speed": speed})
    sonde.log.read("tmp.json").series("loss").values

Names are loaded lazily: a training loop that only logs does not load the reader, nor a reader the
backends.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
