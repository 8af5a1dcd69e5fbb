"""The structured logger: three methods, a backend for every taste, nothing lost, never in the way.

    from sonde import Logger, StdOutBackend, JSONStreamBackend, Verbosity
    logger = Logger([StdOutBackend(Verbosity.DEFAULT), JSONStreamBackend(Verbosity.VERBOSE, "tmp.json")])
    logger.log(step=(epoch, iteration), data={"loss": loss, "speed": speed})
    sonde.log.read("tmp.json").series("loss").values

The names load lazily: a training loop that only logs does not pay for the reader, nor a reader for the backends.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
