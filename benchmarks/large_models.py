"""What the recorder costs a model of 100 million parameters: CPU time of a step and peak memory,
beside the bare loop. Each loop runs in processes of its own, in turns.

    python benchmarks/large_models.py           about four minutes; 4 GB of memory, 5 GB of disk

The gates are for a run that keeps no states of its own (`state_every=0`): at most 2 % of the step,
and 1.05 times the memory.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

import torch
import torch.nn.functional as F
from benchmarks.measure import in_child, markdown_table
from torch import Tensor, nn

from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder

WIDTH: Final = 768
NUM_LAYERS: Final = 11
NUM_WORDS: Final = 16_384
SHAPE: Final = (1, 128)
NUM_STEPS: Final = 7
NUM_ROUNDS: Final = 3
MAX_SHARE: Final = 1.02
MAX_MEMORY: Final = 1.05
_BARE: Final = "bare loop"
LOOPS: Final[dict[str, dict[str, Any] | None]] = {
    _BARE: None,
    "recorded, state_every=0": {"state_every": 0},
    "recorded, a state every 3 steps": {"state_every": 3, "keep_states": 1},
}


class LanguageModel(nn.Module):
    """Embedding, Transformer layers, output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_WORDS, WIDTH)
        layers = [
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True)
            for _ in range(NUM_LAYERS)
        ]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, NUM_WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss."""
        logits = self.head(self.layers(self.embedding(tokens[:, :-1])))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(options: dict[str, Any] | None, folder: str) -> list[float]:
    """Make some updates and return the CPU seconds of each; without options, not recorded."""
    torch.manual_seed(1)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train_step(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    step: Callable[[Tensor], Tensor] = train_step
    recorder: Recorder | None = None
    if options is not None:
        recorder = Recorder(folder, model, optimizer, options=RecorderOptions(**options))

        def recorded_step(tokens: Tensor) -> Tensor:
            assert recorder is not None
            return recorder.step(train_step, tokens)

        step = recorded_step
    seconds = []
    for _ in range(NUM_STEPS):
        tokens = torch.randint(NUM_WORDS, SHAPE)
        started = time.process_time()
        step(tokens)
        seconds.append(time.process_time() - started)
    if recorder is not None:
        recorder.close()
    return seconds


def main() -> None:
    best = dict.fromkeys(LOOPS, float("inf"))
    peaks = dict.fromkeys(LOOPS, float("inf"))
    for _ in range(NUM_ROUNDS):
        for name, options in LOOPS.items():
            with tempfile.TemporaryDirectory(prefix="sonde-large-") as folder:
                cost = in_child(train, options, str(Path(folder, "run")))
            # The first update makes the moments.
            best[name] = min(best[name], *cost.result[1:])
            peaks[name] = min(peaks[name], cost.peak_megabytes)
    rows = []
    for name in LOOPS:
        share = best[name] / best[_BARE]
        memory = peaks[name] / peaks[_BARE]
        rows.append(
            (name, f"{best[name]:.3f}", f"{share:.3f}", f"{peaks[name]:.0f}", f"{memory:.3f}")
        )
    num_parameters = sum(parameter.numel() for parameter in LanguageModel().parameters())
    print(
        f"{num_parameters / 1e6:.0f} million parameters, float32, AdamW, {SHAPE[1]} tokens a step"
    )
    print()
    columns = ["loop", "CPU s of the fastest step", "of the bare loop", "peak MB", "of the bare"]
    print(markdown_table(columns, rows))
    print()
    recorded = "recorded, state_every=0"
    is_met = (
        best[recorded] <= MAX_SHARE * best[_BARE] and peaks[recorded] <= MAX_MEMORY * peaks[_BARE]
    )
    print(
        f"Gate: at most 1.02 of the step and 1.05 of the memory: {'met' if is_met else 'missed'}."
    )


if __name__ == "__main__":
    main()
