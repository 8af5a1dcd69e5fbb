"""A first run to paste: a small model of Python source, and one damaged row at step 300."""

import argparse
import random
import string
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sonde

random.seed(1)
torch.manual_seed(1)
text = Path(argparse.__file__).read_text(encoding="ascii", errors="replace")
model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch_of(step: int) -> Tensor:
    starts = [random.randrange(len(text) - 65) for _ in range(4)]
    rows = [text[start : start + 65] for start in starts]
    if step == 300:
        rows[2] = "".join(random.choices(string.printable[:94], k=65))
    return torch.tensor([list(row.encode()) for row in rows])


def train_step(batch: Tensor) -> Tensor:  # your existing loop body
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def decode(tokens: list[int]) -> str:
    return bytes(tokens).decode()


with sonde.Recorder("runs/first", model, optimizer, decode=decode) as recorder:
    for step in range(1, 401):
        recorder.step(train_step, batch_of(step))
