"""A small language model with sonde's own trainer, for tests of `sonde check`: python
own_trainer.py RUN [--bug NAME] [--update-freq N]. Without a bug it is right.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde import Run
from sonde.train import Schedule, StepOutput, StopWhen, Trainer, TrainerSettings

parser = argparse.ArgumentParser()
parser.add_argument("run", type=Path)
parser.add_argument("--bug", choices=("none", "unshifted"), default="none")
parser.add_argument("--update-freq", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(1)
torch.set_num_threads(1)

VOCABULARY = 61


class Model(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.dropout = nn.Dropout(0.1)
        self.mixer = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores for every position."""
        mixed, _ = self.mixer(self.dropout(self.embedding(tokens)))
        scores: Tensor = self.head(mixed)
        return scores


class NextToken:
    """The model and its loss."""

    def __init__(self) -> None:
        self.model = Model()

    def compute(self, batch: Tensor) -> StepOutput:
        """Return the sum of the losses, and how many there are."""
        inputs = batch[:, :-1]
        labels = inputs if args.bug == "unshifted" else batch[:, 1:]
        scores = self.model(inputs)
        loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
        return StepOutput(loss_sum=loss, weight=labels.numel())


task = NextToken()
rows = torch.randint(1, VOCABULARY, (400, 13), generator=torch.Generator().manual_seed(2))
with Run(args.run, checkpoints=args.run.parent / "checkpoints") as run:
    trainer = Trainer(
        task,
        list(rows.split(8)),
        torch.optim.AdamW(task.model.parameters()),
        schedule=Schedule(schedule="constant", lr=3e-3),
        run=run,
        settings=TrainerSettings(update_freq=args.update_freq, save_every_updates=2),
    )
    trainer.train(stop=StopWhen(max_updates=20))
