"""What a whole check costs, in steps: a GPT of 10M parameters with batches of 8 × 128 tokens.

    python benchmarks/check.py

Measures the CPU time of a step (the median of some), then that of `recorder.check` on eight
batches, which includes the eight updates that it makes and undoes. The gate is 40 steps. Prints one
line of JSON. Takes about a minute on one core.
"""

import contextlib
import io
import json
import statistics
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder

VOCABULARY = 4096
WIDTH = 350
LAYERS = 6
LENGTH = 128
ROWS = 8


class Block(nn.Module):
    """Attention and a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LayerNorm(WIDTH)
        self.second = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).view(len(x), -1, 3, 5, WIDTH // 5).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(x.shape)))
        changed: Tensor = self.dropout(self.down(F.gelu(self.up(self.second(x)))))
        return x + changed


class Model(nn.Module):
    """A GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.tokens(rows) + self.places(torch.arange(rows.shape[1]))
        return F.cross_entropy(
            self.head(self.blocks(x))[:, :-1].flatten(0, 1), rows[:, 1:].flatten()
        )


def main() -> None:
    """Measure, and print one line."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    batches = [torch.randint(0, VOCABULARY, (ROWS, LENGTH)) for _ in range(8)]

    def step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    seconds = []
    for rows in batches:
        started = time.process_time()
        step(rows)
        seconds.append(time.process_time() - started)
    step_seconds = statistics.median(seconds[2:])
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        recorder = Recorder(f"{folder}/run", model, optimizer)
        started = time.process_time()
        report = recorder.check(batches, step)
        check_seconds = time.process_time() - started
        recorder.close()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    measured = {
        "parameters": num_parameters,
        "tokens": ROWS * LENGTH,
        "step_seconds": round(step_seconds, 4),
        "check_seconds": round(check_seconds, 2),
        "steps": round(check_seconds / step_seconds, 1),
        "wrong": [result.name for result in report.wrong],
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
