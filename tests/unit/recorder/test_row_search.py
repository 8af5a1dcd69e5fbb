"""The losses of rows by running parts of a batch, and what is odd about their values."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sonde.recorder.row_search import MAX_ROWS, find_row_losses
from sonde.recorder.row_values import odd_rows

DRAWN = torch.Generator().manual_seed(3)
BATCH = (torch.randn(6, 4, generator=DRAWN), torch.randn(6, 4, generator=DRAWN))


def mean_square(batch: tuple[Tensor, Tensor]) -> float:
    return F.mse_loss(*batch).item()


def summed_square(batch: tuple[Tensor, Tensor]) -> float:
    return F.mse_loss(*batch, reduction="sum").item()


def contrastive(batch: tuple[Tensor, Tensor]) -> float:
    scores = batch[0] @ batch[1].T
    return F.cross_entropy(scores, torch.arange(len(scores))).item()


@pytest.mark.parametrize("loss", [mean_square, summed_square])
def test_rows_are_run_one_by_one_where_the_loss_does_not_show_them(loss: object) -> None:
    assert callable(loss)
    found = find_row_losses(BATCH, loss(BATCH), loss, None)
    expected = [loss((BATCH[0][[row]], BATCH[1][[row]])) for row in range(6)]
    assert list(found.losses) == pytest.approx(expected)
    total = sum(weight * value for weight, value in zip(found.weights, found.losses, strict=True))
    assert total == pytest.approx(loss(BATCH), rel=1e-4)


def test_rows_that_depend_on_each_other_cannot_be_told() -> None:
    found = find_row_losses(BATCH, contrastive(BATCH), contrastive, None)
    assert not found.losses
    assert "add up" in found.problem


def test_a_batch_whose_tensors_have_no_rows_in_common_needs_to_be_told_its_rows() -> None:
    joined = {"x": BATCH[0], "targets": BATCH[1].flatten()}

    def loss(batch: dict[str, Tensor]) -> float:
        return F.mse_loss(batch["x"].flatten(), batch["targets"]).item()

    def rows(batch: dict[str, Tensor], keep: Sequence[int]) -> dict[str, Tensor]:
        targets = batch["targets"].view(6, 4)[list(keep)].flatten()
        return {"x": batch["x"][list(keep)], "targets": targets}

    assert "rows=" in find_row_losses(joined, loss(joined), loss, None).problem
    assert len(find_row_losses(joined, loss(joined), loss, rows).losses) == 6


def test_pairs_in_two_halves_of_a_batch_are_as_many_as_the_user_names() -> None:
    halves = torch.randn(12, 4, generator=DRAWN)

    def loss(batch: Tensor) -> float:
        chosen, rejected = batch.chunk(2)
        return F.softplus((rejected - chosen).sum(1)).mean().item()

    def pairs(batch: Tensor, keep: Sequence[int]) -> Tensor:
        return torch.cat([half[list(keep)] for half in batch.chunk(2)])

    found = find_row_losses(halves, loss(halves), loss, pairs, 6)
    assert found.losses == pytest.approx([loss(pairs(halves, [pair])) for pair in range(6)])


def test_very_many_rows_are_not_run_one_by_one() -> None:
    batch = (torch.zeros(MAX_ROWS + 1, 2), torch.zeros(MAX_ROWS + 1, 2))
    assert "too many" in find_row_losses(batch, 0.0, mean_square, None).problem


def test_values_far_from_the_others_constant_ones_and_broken_ones_are_odd() -> None:
    images = torch.randn(12, 3, 5, generator=DRAWN)
    images[2] *= 40
    images[5] = 0.5
    images[7, 0, 0] = torch.nan
    found = odd_rows({"images": images}, [])
    assert sorted(found) == [2, 5, 7]
    assert "0.5" in found[5]


def test_rows_like_those_of_earlier_batches_are_not_odd() -> None:
    loud = torch.randn(4, 16, generator=DRAWN) * torch.tensor([1.0, 1.0, 1.0, 40.0])[:, None]
    before = [torch.randn(8, 16, generator=DRAWN) * 40 for _ in range(4)]
    assert 3 not in odd_rows(loud, before)
    assert not odd_rows(torch.randn(4, 16, generator=DRAWN), [])


def test_a_row_in_the_tail_of_data_with_heavy_tails_is_not_odd() -> None:
    prices = torch.randn(200, 1, generator=DRAWN)
    prices[::20] *= 50
    largest = prices.abs().max()
    batch = torch.cat([torch.randn(11, 1, generator=DRAWN), 1.1 * largest.reshape(1, 1)])
    assert not odd_rows(batch, [prices])
    batch[-1] *= 3
    assert list(odd_rows(batch, [prices])) == [11]
