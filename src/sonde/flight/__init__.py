"""The flight recorder: sonde's complete tooling inside your own training loop.

A `FlightRecorder` (recorder.py) follows the steps. It holds the last ones in a ring (ring.py), judges each before the
optimizer step (judgement.py), investigates events at the scene (scene.py), and keeps states and batches on disk
(keeper.py), from which a restarted script can replay steps (takeover.py). docs/architecture.md lists every module.

It builds on `forensics`, whose causes and replay it uses, and is used by `report`. Training with and without it is
bit-identical.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
