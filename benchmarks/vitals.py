"""What vitals cost: python benchmarks/vitals.py

A step of a Transformer of 10 million parameters on one core with `RecorderOptions(vitals=True)`:
one measurement, divided by the steps between two of them, beside
the median step; CPU time of the thread.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import markdown_table

from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.recorder.vitals import EVERY
from sonde.run import Run

NUM_STEPS = 4 * EVERY
TOKENS = (4, 64)


def small_transformer() -> nn.Sequential:
    """A Transformer of 10 million parameters."""
    layer = nn.TransformerEncoderLayer(320, 5, 1280, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 5, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(6000, 320), encoder, nn.Linear(320, 6000))


def step_seconds() -> tuple[float, float]:
    """The median seconds of a step at which nothing is measured, and of one at which vitals are."""
    torch.manual_seed(1)
    model = small_transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    usual: list[float] = []
    measured: list[float] = []
    options = RecorderOptions(vitals=True, state_every=0)
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder, "run")) as run:
        recorder = Recorder(run, model, optimizer, options=options)

        def train_step(tokens: Tensor) -> Tensor:
            loss = recorder.loss(F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for step in range(1, NUM_STEPS + 1):
            tokens = torch.randint(0, 6000, TOKENS)
            started = time.thread_time()
            recorder.step(train_step, tokens)
            seconds = time.thread_time() - started
            if step % EVERY:
                usual.append(seconds)
            else:
                measured.append(seconds)
        recorder.close()
    return median(usual), median(measured)


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    usual, measured = step_seconds()
    cost = (measured - usual) / EVERY
    num = sum(parameter.numel() for parameter in small_transformer().parameters())
    rows = [
        ("parameters", f"{num / 1e6:.1f}M"),
        ("a step", f"{1e3 * usual:.1f} ms"),
        (f"a measurement, every {EVERY} steps", f"{1e3 * (measured - usual):.2f} ms"),
        ("a step's share of it", f"{1e6 * cost:.0f} µs, {cost / usual:.2%} of a step"),
    ]
    print(markdown_table(["vitals", ""], rows))


if __name__ == "__main__":
    main()
