"""sonde in other training frameworks: each host's own hooks, connected to the flight recorder.

    hosts.py           shared by all hosts: version checks, the run, skipped samples
    huggingface.py     `SondeCallback` for `transformers.Trainer` and its subclasses
    lightning.py       `SondeCallback` and `SondeLogger` for Lightning
    accelerate.py      `SondeTracker` for Accelerate

Existing logs, imported as runs (without torch and without the tools that wrote them):

    importing.py       the common representation, the run made from it, and trainer_state.json of a Hugging Face Trainer
    event_logs.py      TensorBoard event files and offline wandb runs

The code for each host is thin: everything that is not specific to it is in `flight`. Training with and without sonde is
bit-identical.
"""
