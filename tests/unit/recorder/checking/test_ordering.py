"""Batches that come again in the same order."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.checking.ordering import row_order
from sonde.recorder.recorder import Recorder


@pytest.mark.parametrize(
    ("batches", "num_before_again"),
    [
        ([[1, 2], [3, 4], [1, 2], [3, 4], [1, 2]], 2),
        ([[1, 2], [3, 4], [5, 6], [1, 2], [3, 4], [5, 6]], 3),
        ([[1, 2], [3, 4], [3, 1], [2, 4]], 0),
        ([[1, 2], [1, 2], [1, 2], [1, 2]], 0),
    ],
)
def test_epochs_in_the_same_order_are_counted(
    batches: list[list[int]], num_before_again: int
) -> None:
    assert row_order([], [], batches, []).num_before_again == num_before_again


@pytest.mark.parametrize(("is_sorted", "status"), [(True, "wrong"), (False, "does not apply")])
def test_rows_that_are_sorted_by_an_id_are_named(
    tmp_path: Path, is_sorted: bool, status: str
) -> None:
    torch.manual_seed(1)
    tables = nn.ModuleDict({"users": nn.Embedding(40, 4), "goods": nn.Embedding(40, 4)})
    optimizer = torch.optim.SGD(tables.parameters(), lr=0.1)
    users = torch.randint(40, (128,))
    if is_sorted:
        users = users.sort().values
    rows = torch.stack([users, torch.randint(40, (128,))], 1).split(16)

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        scores = (tables["users"](batch[:, 0]) * tables["goods"](batch[:, 1])).sum(1)
        loss = F.mse_loss(scores, batch.sum(1).float() / 40)
        loss.backward()
        optimizer.step()
        return loss

    with Recorder(tmp_path, tables, optimizer) as recorder:
        report = recorder.check(rows, step)
    found = next(result for result in report.results if result.name == "row_order")
    assert found.status == status, found.text
