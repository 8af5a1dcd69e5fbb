"""sonde in the training loops of others: each host's own hooks, led to the flight recorder.

    hosts.py           what is the same for all: versions, the run, samples that are left out
    huggingface.py     `SondeCallback` for `transformers.Trainer` and what is derived from it
    lightning.py       `SondeCallback` and `SondeLogger` for Lightning
    accelerate.py      `SondeTracker` for Accelerate

What people have already, as runs (torch-free, and without the tools that wrote it):

    importing.py       what every source comes down to, the run that is made of it, and trainer_state.json of a Hugging Face Trainer
    event_logs.py      event files of TensorBoard, offline runs of wandb

Each host's part is thin: what is not about the host lives in `flight`. A host's training is the same with and without it, bit for bit.
"""
