"""A training loop of one's own, with sonde's parts one by one: run, logger, metrics, the exact
step, checkpoints. (A whole loop watched: nano_gpt.py.)

python examples/own_loop.py [RUN]       a few seconds; `sonde show RUN` shows what it recorded
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from sonde import Run
from sonde.metrics import aggregate, get_smoothed_values, log_scalar, reset_meters
from sonde.train import GradientSum, Schedule, StepOutput, TrainerSettings, UpdateStep

NUM_UPDATES = 200


class Regression:
    """A model and its loss: all that a step needs to know of either."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def compute(self, batch: Tensor) -> StepOutput:
        """The sum of the losses and how many there are; never a mean."""
        losses = (self.model(batch).squeeze(1) - batch.sum(1).tanh()).square()
        return StepOutput(loss_sum=losses.sum(), weight=len(batch))


def batch_of(update: int) -> Tensor:
    """Batches of different sizes; each follows from its number."""
    generator = torch.Generator().manual_seed(update)
    return torch.randn(16 + update % 3 * 8, 8, generator=generator)


def main(directory: Path) -> float:
    """Train, and return the mean loss of the last twenty updates."""
    task = Regression()
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=0.0)
    schedule = Schedule(schedule="cosine", lr=1e-2, warmup=20, schedule_updates=NUM_UPDATES)
    step = UpdateStep(
        task, optimizer, GradientSum(task.model.parameters()), TrainerSettings(clip_norm=1.0)
    )
    loss = float("nan")
    with Run(directory, config={"num_updates": NUM_UPDATES}, seeds={"torch": 1}) as run:
        run.logger.metadata("train.loss", {"format": ":.4f", "GOAL": "MINIMIZE", "STAGE": "TRAIN"})
        for update in range(NUM_UPDATES):
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(update)
            result = step.run(update, [(0, batch_of(update))])
            with aggregate("train_inner"):
                log_scalar("train.loss", result.loss, result.weight)
            if (update + 1) % 20 == 0:
                loss = get_smoothed_values("train_inner")["train.loss"]
                run.logger.log(
                    step=(1, update + 1),
                    data={"train.loss": loss, "train.lr": schedule.rate(update)},
                )
                reset_meters("train_inner")
        state = {"model": task.model.state_dict(), "optimizer": optimizer.state_dict()}
        path = run.checkpoints().save(NUM_UPDATES, state)
    print(f"loss {loss:.4f}; the last state is in {path}")
    return loss


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/own-loop"))
