"""The flight recorder: the whole loop of sonde inside a training loop of one's own.

A `FlightRecorder` (recorder.py) follows the steps. It holds the last ones in a ring (ring.py), judges each before the optimiser moves (judgement.py), looks into
events at the scene (scene.py), and keeps states and batches on the disk (keeper.py), from which a script that is started again makes steps once more
(takeover.py). docs/architecture.md lists every module.

It stands above `forensics`, whose causes and replay it uses, and below `report`. Training watched equals training unwatched, bit for bit.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
