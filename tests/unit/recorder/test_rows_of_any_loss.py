"""The planted row is named for losses that do not show their rows: it is found by running rows one
by one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.forensics.verdict import read_verdict
from sonde.recorder.batch_tree import named_rows
from sonde.recorder.recorder import Recorder

ROWS = 16
BAD_STEP = 101


class Task(NamedTuple):
    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Any]
    spoil: Callable[[Any, int], object]
    loss: Callable[[nn.Module, Any], Tensor]


def drawn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def network(num_in: int, num_out: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(num_in, 32), nn.ReLU(), nn.Linear(32, num_out))


def regression_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = drawn(generator, ROWS, 12)
    return x, x[:, :3] * 2 - x[:, 3:6]


def speech_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    letters = torch.randint(1, 6, (ROWS, 4), generator=generator)
    sounds = F.one_hot(letters.repeat_interleave(3, 1), 8).float()
    return sounds + 0.1 * drawn(generator, ROWS, 12, 8), letters


def speech_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    scores = model(batch[0]).log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(
        scores, batch[1], torch.full((len(batch[1]),), 12), torch.tensor([4] * len(batch[1]))
    )


def two_tasks_batch(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    x = drawn(generator, ROWS, 12)
    return x, x[:, :1] * 2 - x[:, 1:2], (x[:, 0] > 0).long()


def two_tasks_loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    output = model(batch[0])
    return F.mse_loss(output[:, :1], batch[1]) + 0.5 * F.cross_entropy(output[:, 1:], batch[2])


TASKS = {
    "regression": Task(
        network(12, 3),
        regression_batch,
        lambda batch, row: batch[1][row].add_(40),
        lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
    ),
    "speech": Task(
        network(8, 6),
        speech_batch,
        lambda batch, row: batch[0][row].copy_(8 * torch.randn(12, 8)),
        speech_loss,
    ),
    "two tasks": Task(
        network(12, 3),
        two_tasks_batch,
        lambda batch, row: batch[1][row].add_(40),
        two_tasks_loss,
    ),
    "autoencoder": Task(
        network(12, 12),
        lambda generator: drawn(generator, ROWS, 12),
        lambda batch, row: batch[row].mul_(30),
        lambda model, batch: F.mse_loss(model(batch), batch),
    ),
}


@pytest.mark.parametrize("row", [2, 13])
@pytest.mark.parametrize("name", TASKS)
def test_the_planted_row_is_named(tmp_path: Path, name: str, row: int) -> None:
    task = TASKS[name]
    torch.manual_seed(row)
    generator = torch.Generator().manual_seed(row)
    model = task.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with Recorder(tmp_path, model, optimizer) as recorder:

        def step(batch: Any) -> Tensor:
            optimizer.zero_grad()
            loss = recorder.loss(task.loss(model, batch))
            loss.backward()
            optimizer.step()
            return loss

        for number in range(1, BAD_STEP + 1):
            batch = task.batch(generator)
            if number == BAD_STEP:
                task.spoil(batch, row)
            recorder.step(step, batch)
    first = read_verdict(tmp_path, BAD_STEP).causes[0]
    assert first.confidence >= 0.5
    assert (first.suspects[0].dataset, first.suspects[0].sample) == named_rows(None, batch)[row]
