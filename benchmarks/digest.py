"""What a digest of a state costs beside writing the checkpoint: CPU time of `take_digest` and of
`torch.save`, for a model of 100 million parameters with the moments of AdamW.

The gate: a digest takes at most 5 % of the CPU time of `torch.save`.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

from sonde.checkpoint.digest import Live, generator_digests, take_digest
from sonde.train.determinism import generators

WIDTH = 768
NUM_LAYERS = 14
NUM_ROUNDS = 5
GATE = 0.05


def make_training() -> Live:
    """A stack of Transformer layers whose optimizer has moments."""
    with torch.no_grad():
        layers = [
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True)
            for _ in range(NUM_LAYERS)
        ]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(200.0),
            "exp_avg": torch.randn_like(parameter),
            "exp_avg_sq": torch.rand_like(parameter),
        }
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return Live(model, optimizer, {"scheduler": scheduler})


def cpu_seconds(make: Callable[[], object]) -> float:
    started = time.process_time()
    make()
    return time.process_time() - started


def main() -> None:
    live = make_training()
    num_parameters = sum(parameter.numel() for parameter in live.model.parameters())

    def digest() -> object:
        return take_digest(live, 200, generators=generator_digests(generators()))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint.pt")

        def save() -> None:
            state = {"model": live.model.state_dict(), "optimizer": live.optimizer.state_dict()}
            torch.save(state, path)

        digests = [cpu_seconds(digest) for _ in range(NUM_ROUNDS)]
        saves = [cpu_seconds(save) for _ in range(NUM_ROUNDS)]
        num_bytes = path.stat().st_size
    digest_seconds = statistics.median(digests)
    save_seconds = statistics.median(saves)
    share = digest_seconds / save_seconds
    print(f"{num_parameters / 1e6:.0f} M parameters, {num_bytes / 1e9:.2f} GB with moments")
    print(f"torch.save    {save_seconds * 1e3:8.1f} ms of CPU")
    print(f"digest        {digest_seconds * 1e3:8.1f} ms of CPU, {share:.1%} of it")
    print(f"gate          {'ok' if share <= GATE else 'MISSED'}: at most {GATE:.0%}")


if __name__ == "__main__":
    main()
