"""The trainer: one exact step, on one process or many, and a loop that knows when to stop.

stopping    which condition ends a run: pure
schedule    the learning rate as a function of the update number: pure
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
