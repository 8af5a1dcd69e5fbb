"""An Accelerate loop that sonde watches: a small language model on a small corpus, one record of
which is garbled.

python examples/accelerate_loop.py
sonde diagnose runs/accelerate -- python examples/accelerate_loop.py
sonde rollback runs/accelerate --step N --apply
python examples/accelerate_loop.py --resume
"""

import argparse
import logging
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from corpus import sentences
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sonde
from sonde.integrations.accelerate import SondeTracker


class LanguageModel(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 32)
        self.recurrent = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, 256)

    def forward(self, rows: Tensor) -> Tensor:
        """The loss of one batch."""
        hidden, _ = self.recurrent(self.embedding(rows[:, :-1]))
        return F.cross_entropy(
            self.head(hidden).flatten(0, 1), rows[:, 1:].flatten(), ignore_index=0
        )


def collate(rows: list[Tensor]) -> Tensor:
    """Rows of bytes, padded with 0."""
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", default="runs/accelerate")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig()
    set_seed(1)
    run = sonde.Run(arguments.directory, config=vars(arguments))
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=arguments.accumulate,
        log_with=SondeTracker(run),
    )
    accelerator.init_trackers("example")
    dataset: Any = sonde.without([torch.tensor(list(text.encode())) for text in sentences()], run)
    model = LanguageModel()
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        DataLoader(dataset, batch_size=arguments.rows, shuffle=True, collate_fn=collate),
    )
    recorder = sonde.Recorder(
        run, model, optimizer, decode=lambda tokens: bytes(tokens).decode(errors="replace")
    )
    if arguments.resume:
        recorder.restore()

    def train_step(batch: Tensor) -> Tensor:
        with accelerator.accumulate(model):
            loss: Tensor = recorder.loss(model(batch))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    for _ in range(4):
        for number, batch in enumerate(loader, 1):
            loss = recorder.step(train_step, batch)
            if number % 40 == 0:
                accelerator.log({"epoch loss": float(loss)}, step=recorder.num_updates)
    accelerator.end_training()
    run.close()


if __name__ == "__main__":
    main()
