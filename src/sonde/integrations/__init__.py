"""sonde in the training loops of others: each host's own hooks, led to the flight recorder.

    hosts.py           what is the same for all: versions, the run, samples that are left out
    huggingface.py     `SondeCallback` for `transformers.Trainer` and what is derived from it
    lightning.py       `SondeCallback` and `SondeLogger` for Lightning
    accelerate.py      `SondeTracker` for Accelerate

Each is thin: what is not about the host lives in `flight`. A host's training is the same with and without it, bit for bit.
"""
