"""A training script with checkpoints of its own, for tests of replay from them: python
checkpointing_script.py RUN OUT [--resume OUT/step-20.pt] [--count N] [--kill-at N]

It keeps no states in the run. Under torchrun it trains with DistributedDataParallel.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from recorder_loops import Training, batches
from torch import nn

from sonde.recorder.options import RecorderOptions

SAVE_EVERY = 10


def main() -> None:
    """Train, saving every few steps; resume if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--kill-at", type=int, default=-1)
    arguments = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", "0"))
    options = RecorderOptions(state_every=0)
    training = Training(arguments.run, wrap=wrapped, settings=options)
    assert training.recorder is not None
    torch.manual_seed(5 + rank)
    start = 0
    if arguments.resume is not None:
        saved = torch.load(arguments.resume, weights_only=True)
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])
        training.scheduler.load_state_dict(saved["scheduler"])
        start = saved["step"]
        training.recorder.num_updates = start
    for number, batch in enumerate(batches(arguments.count, seed=3 + rank), 1):
        if number <= start:
            continue
        training.make(batch)
        if number % SAVE_EVERY == 0 and rank == 0:
            save(training, number, arguments.out)
        if number == arguments.kill_at:
            training.recorder.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    training.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def wrapped(model: nn.Module) -> nn.Module:
    """Return the model as the loop calls it."""
    return nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model


def save(training: Training, step: int, out: Path) -> None:
    """Write a checkpoint as people do."""
    out.mkdir(exist_ok=True)
    state = {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "scheduler": training.scheduler.state_dict(),
        "step": step,
    }
    path = out / f"step-{step}.pt"
    torch.save(state, path)
    assert training.recorder is not None
    training.recorder.checkpoint(path, resume=["--resume", str(path)])


if __name__ == "__main__":
    main()
