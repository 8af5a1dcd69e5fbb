"""sonde: the instrument package that rides along with a PyTorch training run.

This module holds the public names and nothing else. They load lazily, so `import sonde` needs no torch and takes a few
milliseconds; each name costs what its own module costs, the first time it is used.
"""

from typing import TYPE_CHECKING

from sonde.version import __version__

if TYPE_CHECKING:
    from sonde.run import Run as Run

# The public names, each with the module that defines it. Listed once: __all__, __dir__ and the lazy lookup read this.
_HOMES = {
    "Run": "sonde.run",
}

__all__ = ["Run", "__version__"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sonde' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES})
