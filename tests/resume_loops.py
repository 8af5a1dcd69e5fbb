"""A loop of one's own that saves everything, is started again, and loads everything, for the tests
of resumes. A test leaves something out, or changes something, between the two.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.checkpoint.resume_report import ResumeReport, read_reports
from sonde.errors import TrainingStopped
from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder

SAVED = 20
"""The step after which the checkpoint is written."""
OLDER = 10
"""The step after which an older checkpoint is written."""
NUM_ROWS = 4


class Net(nn.Module):
    """Every kind of state: weights, a norm, buffers, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, 30)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.head(self.dropout(self.norm(self.embedding(x))))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class Loop:
    """One start of the training."""

    def __init__(self, folder: Path, *, seed: int = 1, options: RecorderOptions | None = None):
        torch.manual_seed(seed)
        self.folder = folder
        self.model = self.make_model()
        self.optimizer = self.make_optimizer()
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / 8) * 0.99**step
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=6)
        self.recorder = Recorder(
            folder / "run",
            self.model,
            self.optimizer,
            options=options or RecorderOptions(),
            scheduler=self.scheduler,
            scaler=self.scaler,
        )
        self.with_ids = False
        generator = torch.Generator().manual_seed(5)
        self.rows = torch.randint(0, 30, (100 * NUM_ROWS, 7), generator=generator)

    def make_model(self) -> Net:
        return Net()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def batch(self, number: int) -> dict[str, Any]:
        """The batch after `number` others, in the order of the data."""
        first = number * NUM_ROWS
        rows = self.rows[first : first + NUM_ROWS]
        batch: dict[str, Any] = {"x": rows[:, :-1], "y": rows[:, 1:]}
        if self.with_ids:
            batch["sample_ids"] = list(range(first, first + NUM_ROWS))
        return batch

    def step(self, batch: dict[str, Any]) -> Tensor:
        loss: Tensor = self.model(batch["x"], batch["y"])
        self.recorder.loss(loss)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss

    def train(self, start: int, end: int, *, data_from: int | None = None) -> None:
        """Make the updates after `start`, up to `end`."""
        ahead = start if data_from is None else data_from
        for number in range(end - start):
            self.recorder.step(self.step, self.batch(ahead + number))
            made = start + number + 1
            if made in (OLDER, SAVED):
                torch.save(self.state(made), self.folder / f"{made}.pt")

    def state(self, step: int) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "generator": torch.get_rng_state(),
            "step": step,
        }

    def load(self, *, without: tuple[str, ...] = (), step: int = SAVED) -> None:
        """Load a checkpoint, without some parts of it."""
        state = torch.load(self.folder / f"{step}.pt", weights_only=True)
        for name in ("model", "optimizer", "scheduler", "scaler"):
            if name not in without:
                getattr(self, name).load_state_dict(state[name])
        if "generator" not in without:
            torch.set_rng_state(state["generator"])
        self.recorder.num_updates = SAVED


def first_start(folder: Path, *, end: int = SAVED + 4, with_ids: bool = False) -> None:
    """Train up to `end`, past the checkpoint or right up to it."""
    loop = Loop(folder)
    loop.with_ids = with_ids
    loop.train(0, end)
    loop.recorder.close()


def resume(
    folder: Path,
    spoil: Callable[[Loop], None] = Loop.load,
    *,
    kind: type[Loop] = Loop,
    data_from: int = SAVED,
    with_ids: bool = False,
    **options: Any,
) -> ResumeReport:
    """Start a loop of a kind again, load with `spoil`, train three steps, and return what was
    reported.
    """
    loop = kind(folder, options=RecorderOptions(**options))
    loop.with_ids = with_ids
    spoil(loop)
    with contextlib.suppress(TrainingStopped):
        loop.train(SAVED, SAVED + 3, data_from=data_from)
    loop.recorder.close()
    return read_reports(folder / "run")[-1]
