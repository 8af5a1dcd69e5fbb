"""A training small enough to run a thousand times: six batches an epoch, one process or many, exact
positions.

trainer, task = make_trainer(run)
trainer.train(stop=StopWhen(max_updates=9), callbacks=[…])
assert weights(task) == …
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sonde.log.reading import read
from sonde.run import Run
from sonde.train.schedule import Schedule
from sonde.train.settings import TrainerSettings
from sonde.train.task import StepOutput
from sonde.train.trainer import Trainer

BATCHES_PER_EPOCH = 6
TIMES = ("time", "ips", "timestamp", "elapsed")


class Numbers:
    """Six global micro-batches an epoch, dealt out to ranks in turn; the position is two
    integers.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size
        self.epoch = 1
        self.offset = 0

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(self.offset, BATCHES_PER_EPOCH, self.world_size):
            generator = torch.Generator().manual_seed(1000 * self.epoch + start + self.rank)
            rows = 2 + (start + self.rank) % 3
            self.offset = start + self.world_size
            if self.offset >= BATCHES_PER_EPOCH:
                self.epoch = self.epoch + 1
                self.offset = 0
            yield torch.randn(rows, 4, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "offset": self.offset}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.offset = state["offset"]


class Regression:
    """A task with dropout; `spoil` may change a batch before it is computed."""

    def __init__(self, spoil: Callable[[Tensor], Tensor] = lambda batch: batch) -> None:
        torch.manual_seed(7)
        self.model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.spoil = spoil

    def compute(self, batch: Tensor) -> StepOutput:
        batch = self.spoil(batch)
        losses = (self.model(batch).squeeze(1) - batch.sum(1)).square()
        return StepOutput(
            loss_sum=losses.sum(),
            weight=len(batch),
            tensors={"mean": losses.mean(), "losses": losses.detach()},
        )


def make_trainer(
    run: Run | None = None,
    rank: int = 0,
    world_size: int = 1,
    task: Regression | None = None,
    **settings: Any,
) -> tuple[Trainer, Regression]:
    task = task or Regression()
    trainer = Trainer(
        task,
        Numbers(rank, world_size),
        torch.optim.AdamW(task.model.parameters(), lr=0.0),
        schedule=Schedule(schedule="constant", lr=1e-2),
        run=run,
        valid_data=lambda: [torch.ones(3, 4), torch.arange(8.0).view(2, 4)],
        settings=TrainerSettings(
            **(
                {"log_interval": 1, "validate_every_epochs": None, "save_every_epochs": None}
                | settings
            )
        ),
    )
    return trainer, task


def weights(task: Regression) -> list[float]:
    values: list[float] = torch.cat(
        [p.detach().flatten() for p in task.model.parameters()]
    ).tolist()
    return values


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    lines = (directory / "records" / "events.rank0.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == name]


def standing_log(directory: Path) -> list[tuple[int, Any, dict[str, Any]]]:
    """What a reader of the run's log sees, resumes taken into account and times left out: rank,
    step, values.
    """
    records = read(directory).records
    standing = [
        (
            record.rank,
            record.step,
            {name: value for name, value in record.data.items() if not _is_time(name)},
        )
        for record in records
        if record.type == "LOG"
    ]
    return sorted(standing, key=lambda record: (record[0], record[1]))


def _is_time(name: str) -> bool:
    return any(word in name for word in TIMES)
