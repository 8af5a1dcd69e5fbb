"""The same training with `Trainer`: epochs, evaluation, checkpoints, resume and stopping come with
it.

python examples/trainer.py [RUN]        a few seconds; run it again and it goes on where it stopped,
which is at the end
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sonde import Run
from sonde.callbacks import Callback, Context
from sonde.train import Schedule, StepOutput, StopWhen, Trainer, TrainerSettings

BATCHES_PER_EPOCH = 50


class Regression:
    """A model and its loss."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def compute(self, batch: Tensor) -> StepOutput:
        """The sum of the losses and how many there are; never a mean."""
        losses = (self.model(batch).squeeze(1) - batch.sum(1).tanh()).square()
        return StepOutput(
            loss_sum=losses.sum(), weight=len(batch), tensors={"worst": losses.max().detach()}
        )


class Numbers:
    """Batches that follow from their number; the position is two integers."""

    def __init__(self) -> None:
        self.epoch = 1
        self.offset = 0

    def __iter__(self) -> Iterator[Tensor]:
        for offset in range(self.offset, BATCHES_PER_EPOCH):
            generator = torch.Generator().manual_seed(1000 * self.epoch + offset)
            self.offset = offset + 1
            if self.offset == BATCHES_PER_EPOCH:
                self.epoch = self.epoch + 1
                self.offset = 0
            yield torch.randn(16 + offset % 3 * 8, 8, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        return {"epoch": self.epoch, "offset": self.offset}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position."""
        self.epoch = state["epoch"]
        self.offset = state["offset"]


class WorstSample(Callback):
    """Watches the worst sample of every update."""

    def __init__(self) -> None:
        self.worst = 0.0

    def on_step_end(self, context: Context) -> None:
        """An update was made."""
        self.worst = max(self.worst, float(context.tensors["worst"]))


def main(directory: Path) -> str:
    """Train, and return why it stopped."""
    task = Regression()
    callback = WorstSample()
    held_out = torch.randn(64, 8, generator=torch.Generator().manual_seed(7))
    with Run(directory, seeds={"torch": 1}) as run:
        trainer = Trainer(
            task,
            Numbers(),
            torch.optim.AdamW(task.model.parameters(), lr=0.0),
            schedule=Schedule(schedule="inverse_sqrt", lr=1e-2, warmup=20),
            run=run,
            valid_data=lambda: [held_out],
            settings=TrainerSettings(clip_norm=1.0, log_interval=20),
        )
        reason = trainer.train(stop=StopWhen(max_epochs=6, patience=3), callbacks=[callback])
    print(f"{reason}; the worst sample had a loss of {callback.worst:.2f}")
    return reason


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/trainer"))
