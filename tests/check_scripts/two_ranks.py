"""A classifier on two ranks with DDP, for tests of `sonde check`: torchrun … two_ranks.py RUN
[--bug same_rows]. Without a bug it is right.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import sonde

parser = argparse.ArgumentParser()
parser.add_argument("run", type=Path)
parser.add_argument("--bug", choices=("none", "same_rows", "sorted"), default="none")
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(1)
torch.set_num_threads(1)
network = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 6))
model = nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
recorder = sonde.Recorder(args.run, model, optimizer)


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """Return the rows of this rank."""
    seed = step if args.bug == "same_rows" else 2 * step + dist.get_rank()
    rows = torch.randn(16, 12, generator=torch.Generator().manual_seed(seed))
    labels = rows[:, :6].argmax(1)
    if args.bug == "sorted":
        labels = torch.full_like(labels, step // 2)
    return rows, labels


def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
    """Do all that happens to one batch."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss.detach()


for step in range(12):
    recorder.step(train_step, batch_of(step))
recorder.close()
dist.destroy_process_group()
