"""A training script as people write them, for tests of the recorder: python recorder_script.py
RUN --mode MODE [--count N] [--garbled N]

Trains without a recorder first and says whether the watched training came to the same bits; in a
replay only the watched one begins.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from recorder_loops import Model, Training, batches, same
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from sonde.recorder.options import RecorderOptions
from sonde.records.replay_order import VARIABLE


def _sharded(model: nn.Module) -> nn.Module:
    return fully_shard(model)  # type: ignore[return-value]  # it stays a module


def _compiled(model: nn.Module) -> nn.Module:
    # torch types it as a function
    made: nn.Module = torch.compile(model)  # type: ignore[assignment]
    return made


def _in_parts(model: nn.Module) -> nn.Module:
    """Tensor parallel: each rank has half of the vocabulary."""
    mesh = init_device_mesh("cpu", (2,))
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh, plan)


WRAPS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": nn.parallel.DistributedDataParallel,
    "fsdp": _sharded,
    "compile": _compiled,
    "tp": _in_parts,
}


class WithoutBatchNorm(Model):
    """FSDP2 has no say in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)  # type: ignore[assignment]  # another module in its place


class WithoutNorm(Model):
    """All of its weights are in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()  # type: ignore[assignment]  # another module in its place


class InBfloat16(Model):
    """Under autocast, which the model enters itself."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> object:
        """As always."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x, y)


def train(directory: Path | None, arguments: argparse.Namespace) -> Training:
    """One training, watched when it has a directory."""
    models = {"fsdp": WithoutBatchNorm, "bf16": InBfloat16, "tp": WithoutNorm}
    settings = RecorderOptions(state_every=25)
    wrap = WRAPS.get(arguments.mode, lambda model: model)
    training = Training(
        directory,
        wrap=wrap,
        model=models.get(arguments.mode, Model),
        settings=settings,
        on_event=arguments.on_event,
    )
    # Ranks that hold parts of one model see the same batches.
    rank = int(os.environ.get("RANK", "0")) if arguments.mode != "tp" else 0
    accumulates = arguments.mode == "accumulate"
    start = training.recorder.restore() if arguments.restore and training.recorder else 0
    if not start:
        torch.manual_seed(5 + rank)
    fed = batches(
        arguments.count * (2 if accumulates else 1), garbled=arguments.garbled, seed=3 + rank
    )
    for number, batch in enumerate(fed, 1):
        if number > start:
            training.rate_factor = 40.0 if number == arguments.high_rate_at else 1.0
            training.make(batch, number % 2 == 0 if accumulates else None)
    training.close()
    return training


def main() -> None:
    """Train twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--mode", default="float32")
    parser.add_argument("--count", type=int, default=70)
    parser.add_argument("--garbled", type=int)
    parser.add_argument(
        "--high-rate-at", type=int, help="make one update at 40 times the learning rate"
    )
    parser.add_argument("--on-event", default="record")
    parser.add_argument("--restore", action="store_true")
    parser.add_argument("--alone", action="store_true", help="train watched only")
    arguments = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    bare = None if VARIABLE in os.environ or arguments.alone else train(None, arguments)
    watched = train(arguments.run, arguments)
    if bare is not None:
        sys.stdout.write("same\n" if same(bare.everything(), watched.everything()) else "other\n")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
