"""A loss that is summed over the rows of batches of different sizes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
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
