"""sonde: the instrument package that rides along with a PyTorch training run.

This module holds the public names and nothing else. They load lazily, so `import sonde` needs no torch and takes a few
milliseconds; each name costs what its own module costs, the first time it is used.
"""

from typing import TYPE_CHECKING

from sonde.version import __version__

if TYPE_CHECKING:
    from sonde import log as log
    from sonde import metrics as metrics
    from sonde import probe as probe
    from sonde.callbacks.checkpoint import CheckpointCallback as CheckpointCallback
    from sonde.callbacks.evaluator import EvaluatorCallback as EvaluatorCallback
    from sonde.callbacks.simple_loss_logger import SimpleLossLoggerCallback as SimpleLossLoggerCallback
    from sonde.callbacks.spikes import SpikeCallback as SpikeCallback
    from sonde.callbacks.wandb import WandbCallback as WandbCallback
    from sonde.errors import TrainingStopped as TrainingStopped
    from sonde.flight.recorder import FlightRecorder as FlightRecorder
    from sonde.flight.settings import FlightSettings as FlightSettings
    from sonde.forensics.diagnose import diagnose as diagnose
    from sonde.forensics.replay import Replay as Replay
    from sonde.log.backends.json_stream import JSONStreamBackend as JSONStreamBackend
    from sonde.log.backends.stdout import StdOutBackend as StdOutBackend
    from sonde.log.logger import Logger as Logger
    from sonde.log.verbosity import Verbosity as Verbosity
    from sonde.probe.debugger import PrecisionDebugger as PrecisionDebugger
    from sonde.report.inline import show as show
    from sonde.run import Run as Run
    from sonde.spikes.recorder import SpikeRecorder as SpikeRecorder
    from sonde.spikes.token_loss_spike import TokenLossSpike as TokenLossSpike
    from sonde.train.loop import Trainer as Trainer
    from sonde.train.stopping import StopWhen as StopWhen

# The public names, each with the module that defines it; a room stands for itself. Listed once: __dir__ and the lazy lookup
# read this, a test holds __all__ and the block above to it.
_HOMES = {
    "CheckpointCallback": "sonde.callbacks.checkpoint",
    "EvaluatorCallback": "sonde.callbacks.evaluator",
    "FlightRecorder": "sonde.flight.recorder",
    "FlightSettings": "sonde.flight.settings",
    "JSONStreamBackend": "sonde.log.backends.json_stream",
    "Logger": "sonde.log.logger",
    "PrecisionDebugger": "sonde.probe.debugger",
    "Replay": "sonde.forensics.replay",
    "Run": "sonde.run",
    "SimpleLossLoggerCallback": "sonde.callbacks.simple_loss_logger",
    "SpikeCallback": "sonde.callbacks.spikes",
    "SpikeRecorder": "sonde.spikes.recorder",
    "StdOutBackend": "sonde.log.backends.stdout",
    "StopWhen": "sonde.train.stopping",
    "TokenLossSpike": "sonde.spikes.token_loss_spike",
    "Trainer": "sonde.train.loop",
    "TrainingStopped": "sonde.errors",
    "Verbosity": "sonde.log.verbosity",
    "WandbCallback": "sonde.callbacks.wandb",
    "diagnose": "sonde.forensics.diagnose",
    "log": "sonde",
    "metrics": "sonde",
    "probe": "sonde",
    "show": "sonde.report.inline",
}

__all__ = [
    "CheckpointCallback",
    "EvaluatorCallback",
    "FlightRecorder",
    "FlightSettings",
    "JSONStreamBackend",
    "Logger",
    "PrecisionDebugger",
    "Replay",
    "Run",
    "SimpleLossLoggerCallback",
    "SpikeCallback",
    "SpikeRecorder",
    "StdOutBackend",
    "StopWhen",
    "TokenLossSpike",
    "Trainer",
    "TrainingStopped",
    "Verbosity",
    "WandbCallback",
    "__version__",
    "diagnose",
    "log",
    "metrics",
    "probe",
    "show",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sonde' has no attribute {name!r}")
    import importlib

    if home == "sonde":
        return importlib.import_module(f"sonde.{name}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES})
