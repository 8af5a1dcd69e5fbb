"""A training script with checkpoints of its own, for tests of replay from them: python
checkpointing_script.py RUN OUT [--resume OUT/step-20.pt] [--count N] [--kill-at N]

It keeps no states in the run. Under torchrun it trains with DistributedDataParallel; with --shard
with FSDP2, whose checkpoints are those of torch.distributed.checkpoint.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from recorder_loops import Model, Training, batches
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from torch.distributed.fsdp import fully_shard

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
    parser.add_argument("--shard", action="store_true")
    arguments = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", "0"))
    training = Training(
        arguments.run,
        model=sharded if arguments.shard else Model,
        wrap=as_it_is if arguments.shard else wrapped,
        settings=RecorderOptions(state_every=0),
    )
    assert training.recorder is not None
    torch.manual_seed(5 + rank)
    start = 0
    if arguments.resume is not None:
        load = load_shards if arguments.shard else load_file
        load(training, arguments.resume)
        start = int(arguments.resume.stem.removeprefix("step-"))
        training.recorder.num_updates = start
    for number, batch in enumerate(batches(arguments.count, seed=3 + rank), 1):
        if number <= start:
            continue
        training.make(batch)
        if number % SAVE_EVERY == 0 and arguments.shard:
            save_shards(training, arguments.out / f"step-{number}")
        elif number % SAVE_EVERY == 0 and rank == 0:
            save_file(training, arguments.out / f"step-{number}.pt")
        if number == arguments.kill_at:
            training.recorder.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    training.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def wrapped(model: nn.Module) -> nn.Module:
    """Return the model as the loop calls it."""
    return nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model


def as_it_is(model: nn.Module) -> nn.Module:
    """Return the model."""
    return model


def sharded() -> nn.Module:
    """Return a model of which every rank has a part. FSDP2 has no say in buffers."""
    model = Model()
    model.norm = nn.LayerNorm(24)  # type: ignore[assignment]  # another module in its place
    return fully_shard(model)  # type: ignore[return-value]  # it stays a module


def save_file(training: Training, path: Path) -> None:
    """Write a checkpoint as people do."""
    path.parent.mkdir(exist_ok=True)
    state = {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "scheduler": training.scheduler.state_dict(),
    }
    torch.save(state, path)
    assert training.recorder is not None
    training.recorder.checkpoint(path, resume=["--resume", str(path)])


def load_file(training: Training, path: Path) -> None:
    """Load what `save_file` has written."""
    saved = torch.load(path, weights_only=True)
    training.model.load_state_dict(saved["model"])
    training.optimizer.load_state_dict(saved["optimizer"])
    training.scheduler.load_state_dict(saved["scheduler"])


def save_shards(training: Training, path: Path) -> None:
    """Write a checkpoint of which every rank has a part."""
    model, optimizer = get_state_dict(training.model, training.optimizer)
    state = {"model": model, "optimizer": optimizer, "scheduler": training.scheduler.state_dict()}
    save_distributed(state, checkpoint_id=path)
    assert training.recorder is not None
    training.recorder.checkpoint(path, resume=["--resume", str(path)])


def load_shards(training: Training, path: Path) -> None:
    """Load what `save_shards` has written."""
    model, optimizer = get_state_dict(training.model, training.optimizer)
    schedule = training.scheduler.state_dict()
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": schedule}
    load_distributed(state, checkpoint_id=path)
    set_state_dict(
        training.model,
        training.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    training.scheduler.load_state_dict(state["scheduler"])


if __name__ == "__main__":
    main()
