"""From a spike to its cause: replay a step, ask what made it so by experiment, plan the way back."""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
