"""sonde: the instrument package that rides along with a PyTorch training run.

The public names stand in `__init__.pyi`. They load lazily, so `import sonde` needs no torch and
takes a few milliseconds; each name costs what its own module costs, the first time it is used.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
