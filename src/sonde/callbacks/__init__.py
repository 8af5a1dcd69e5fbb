"""Callbacks: what rides along with a training run. The moments are in base.py, one callback per file beside it."""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
