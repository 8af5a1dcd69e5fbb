"""The recorder: sonde's complete tooling inside your own training loop.

A `Recorder` (recorder.py) takes each update through a pipeline (pipeline.py): its batch is held,
its loss and gradients are judged before the optimizer moves (judgement.py), an event is looked into
at the scene (scene.py), and states and batches are kept on disk (keeper.py), from which a restarted
script can replay steps (takeover.py). Nothing of it raises into the loop (guard.py), and what it
touches is put back (put_back.py). docs/architecture.md lists every module.

It builds on `forensics`, whose causes and replay it uses, and is used by `report`. Training with
and without it is bit-identical.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
