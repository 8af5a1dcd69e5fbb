"""A small language model, its text and a training loop as people write them, for the tests of the
recorder.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.options import OnEvent, RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.run import Run

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "while",
    "dogs",
    "ran",
    "after",
    "red",
    "balls",
    "in",
    "green",
    "parks",
    "under",
    "blue",
    "skies",
    "all",
    "summer",
    "long",
]
NUM_ROWS = 6
NUM_TOKENS = 24


def corpus() -> Tensor:
    """A text of words in random order, as its bytes."""
    rng = random.Random(1)
    return torch.tensor(
        [ord(letter) for letter in " ".join(rng.choice(WORDS) for _ in range(4000))]
    )


def decode(tokens: list[int]) -> str:
    """Bytes as text."""
    return "".join(map(chr, tokens))


class Model(nn.Module):
    """Predicts the next character; with dropout and batch norm, so that every kind of state is
    there.
    """

    def __init__(self, *, returns_loss: bool = True) -> None:
        super().__init__()
        self.returns_loss = returns_loss
        self.embedding = nn.Embedding(128, 24)
        self.norm = nn.BatchNorm1d(NUM_TOKENS)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(24, 128)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        logits = self.head(self.dropout(self.norm(self.embedding(x))))
        if y is None or not self.returns_loss:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


def batches(
    num: int, *, garbled: int | None = None, seed: int = 3
) -> Iterator[tuple[Tensor, Tensor]]:
    """Random crops of the corpus; one row of batch `garbled` (from 1) is noise."""
    text = corpus()
    generator = torch.Generator().manual_seed(seed)
    for number in range(1, num + 1):
        starts = torch.randint(
            len(text) - NUM_TOKENS - 1, (NUM_ROWS,), generator=generator
        ).tolist()
        rows = torch.stack([text[start : start + NUM_TOKENS + 1] for start in starts])
        if number == garbled:
            rows[2] = torch.randint(33, 126, (NUM_TOKENS + 1,), generator=generator)
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Training:
    """A training: model, optimizer, scheduler, step function; watched when it has a directory."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        model: Callable[[], nn.Module] = Model,
        wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
        settings: RecorderOptions | None = None,
        on_event: OnEvent = "record",
        tells_loss: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.model = wrap(model())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.rate_factor = 1.0
        """The schedule's rate times this, from the next update on."""
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: self.rate_factor / (1 + step / 500)
        )
        self.tells_loss = tells_loss
        self.recorder: Recorder | None = None
        self.run: Run | None = None
        if directory is not None:
            self.run = Run(directory)
            self.recorder = Recorder(
                self.run,
                self.model,
                self.optimizer,
                decode=decode,
                options=settings or RecorderOptions(state_every=20),
                on_event=on_event,
                scheduler=self.scheduler,
            )

    def train_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """One update."""
        self.optimizer.zero_grad()
        loss = self.forward(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return loss

    def accumulate(self, batch: tuple[Tensor, Tensor], last: bool) -> Tensor:
        """One micro-batch of two."""
        loss = self.forward(batch)
        (loss / 2).backward()
        if last:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return loss

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch."""
        if not self.tells_loss:
            found: Tensor = self.model(*batch)[1]
            return found
        loss = F.cross_entropy(self.model(batch[0]).flatten(0, 1), batch[1].flatten())
        return self.recorder.loss(loss) if self.recorder else loss

    def make(self, batch: Any, last: bool | None = None) -> Tensor:
        """Put a batch through the step function, watched or not."""
        if last is None:
            return (
                self.recorder.step(self.train_step, batch)
                if self.recorder
                else self.train_step(batch)
            )
        return (
            self.recorder.step(self.accumulate, batch, last=last)
            if self.recorder
            else self.accumulate(batch, last)
        )

    def train(
        self, num: int, *, garbled: int | None = None, high_rate_at: int | None = None
    ) -> list[float]:
        """Make updates; the learning rate of one is 200 times too high."""
        losses = []
        torch.manual_seed(5)  # another training in this process may have drawn meanwhile
        for number, batch in enumerate(batches(num, garbled=garbled), 1):
            rate = self.optimizer.param_groups[0]["lr"]
            if number == high_rate_at:
                self.optimizer.param_groups[0]["lr"] = 200 * rate
            losses.append(self.make(batch).item())
            if number == high_rate_at:
                self.optimizer.param_groups[0]["lr"] = rate
        self.close()
        return losses

    def close(self) -> None:
        """End the run."""
        if self.run is not None:
            self.run.close()

    def weight(self) -> Tensor:
        """The last weights."""
        return list(self.model.parameters())[-2].detach().clone()

    def everything(self) -> dict[str, Tensor]:
        """All weights and buffers."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Are two trainings in the same state, to the bit?"""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
