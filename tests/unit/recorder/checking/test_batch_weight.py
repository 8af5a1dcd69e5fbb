"""A loss that is summed over the rows of batches of different sizes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder

SIZES = (6, 12, 8, 20, 6, 10, 16, 9)


def status(run: Path, loss_of: Callable[[Tensor], Tensor], sizes: tuple[int, ...]) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of((model(batch["x"]).squeeze(1) - batch["y"]).square())
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [{"x": torch.randn(size, 5), "y": 3 + torch.randn(size)} for size in sizes]
    with Recorder(run, model, optimizer) as recorder:
        report = recorder.check(batches, train_step)
    return next(result.status for result in report.results if result.name == "batch_weight")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_of", "sizes", "expected"),
    [
        (torch.sum, SIZES, "wrong"),
        (torch.mean, SIZES, "fine"),
        (torch.sum, (12,) * 8, "fine"),
        (torch.max, SIZES, "cannot tell"),
        (torch.sum, (2,) * 8, "does not apply"),
    ],
)
def test_a_sum_over_batches_of_different_sizes_is_named(
    tmp_path: Path, loss_of: Callable[[Tensor], Tensor], sizes: tuple[int, ...], expected: str
) -> None:
    assert status(tmp_path, loss_of, sizes) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("divides_by_all", "expected"), [(True, "wrong"), (False, "fine")])
def test_a_mean_over_places_that_do_not_count_is_named(
    tmp_path: Path, divides_by_all: bool, expected: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        optimizer.zero_grad()
        scores = model(batch[0]).flatten(0, 1)
        labels = batch[1].flatten()
        if divides_by_all:
            loss = F.cross_entropy(scores, labels, reduction="none").mean()
        else:
            loss = F.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = []
    for number in range(8):
        labels = torch.randint(20, (8, 10))
        labels[:, 4 + number % 4 :] = -100
        batches.append((torch.randint(20, (8, 10)), labels))
    with Recorder(tmp_path, model, optimizer) as recorder:
        report = recorder.check(batches, train_step)
    found = next(result for result in report.results if result.name == "batch_weight")
    assert found.status == expected


@pytest.mark.slow
@pytest.mark.parametrize(("gives_logarithms", "expected"), [(True, "fine"), (False, "wrong")])
def test_probabilities_given_to_kl_div_are_named(
    tmp_path: Path, gives_logarithms: bool, expected: str
) -> None:
    torch.manual_seed(0)
    student = nn.Linear(6, 5)
    teacher = nn.Linear(6, 5).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=1e-3)

    def train_step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        own = student(batch)
        chances = own.log_softmax(-1) if gives_logarithms else own.softmax(-1)
        loss = F.kl_div(chances, teacher(batch).softmax(-1), reduction="batchmean")
        loss.backward()
        optimizer.step()
        return loss.detach()

    with Recorder(tmp_path, student, optimizer) as recorder:
        report = recorder.check([torch.randn(8, 6) for _ in range(8)], train_step)
    found = next(result for result in report.results if result.name == "loss_inputs")
    assert found.status == expected
