"""sonde in other training frameworks: each host's own hooks, connected to the recorder.

    hosts.py           shared by all hosts: version checks, the run, skipped samples
    huggingface.py     `SondeCallback` for `transformers.Trainer` and its subclasses
    trl_trainers.py    what the rows of TRL's trainers are
    lightning.py       `SondeCallback` and `SondeLogger` for Lightning
    lightning_factory.py  the same callback, asked for by an environment variable
    accelerate.py      `SondeTracker` for Accelerate

Existing logs, imported as runs (without torch and without the tools that wrote them):

    importing.py       the run made from what a reader in `curves` found, with its events

The code for each host is thin: everything that is not specific to it is in `recorder`. Training
with and without sonde is bit-identical.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
