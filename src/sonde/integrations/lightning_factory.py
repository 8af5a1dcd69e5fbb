"""Lightning's `callbacks_factory` entry point: a script is recorded without changing it.

    SONDE_LIGHTNING_RUN=runs/mine python train.py

Lightning asks every installed package for callbacks whenever a Trainer is made. Without the
variable this returns none, and imports nothing.
"""

import os
from typing import Any, Final

RUN_VARIABLE: Final = "SONDE_LIGHTNING_RUN"
"""The environment variable that names the run directory."""


def callbacks() -> list[Any]:
    """Return a `SondeCallback` if the environment names a run directory."""
    directory = os.environ.get(RUN_VARIABLE, "").strip()
    if not directory:
        return []
    from sonde.integrations.lightning import SondeCallback

    callback = SondeCallback(directory)
    callback.is_from_environment = True
    return [callback]
