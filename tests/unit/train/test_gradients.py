"""Summed gradients over real gloo ranks: equal to one process, whatever each rank held."""

import hashlib
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from rank_group import run_ranks
from torch import Tensor, nn

from sonde.train.gradients import GradientSum, OrderedGradientSum, trainable

# Rows of each micro-batch, by rank: unequal, an empty rank, accumulation.
SPLITS: dict[str, list[list[int]]] = {
    "two unequal ranks": [[5], [2]],
    "an empty rank": [[7], []],
    "accumulation": [[3, 1], [2, 1]],
    "four ranks, one empty": [[2], [1, 1], [], [3]],
}


def make_model(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def make_rows(dtype: torch.dtype) -> Tensor:
    return torch.randn(7, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(
        dtype
    )


def loss_sum(model: nn.Module, rows: Tensor) -> Tensor:
    output: Tensor = model(rows)
    return output.square().sum()


def gradients(model: nn.Module) -> list[float]:
    return [
        float(value) for p in model.parameters() if p.grad is not None for value in p.grad.flatten()
    ]


def micro_batches(split: Sequence[Sequence[int]], rank: int) -> list[tuple[int, int]]:
    """The row ranges of a rank: rows are dealt out in order of rank."""
    start = sum(sum(sizes) for sizes in split[:rank])
    ranges = []
    for size in split[rank]:
        ranges.append((start, start + size))
        start += size
    return ranges


def summed_on_rank(split: Sequence[Sequence[int]], rank: int, dtype: torch.dtype) -> list[float]:
    model = make_model(dtype)
    rows = make_rows(dtype)
    # small, so that there are several buckets
    reduce = GradientSum(trainable(model), bucket_bytes=100)
    ranges = micro_batches(split, rank)
    for position, (start, stop) in enumerate(ranges):
        reduce.begin(is_last=position == len(ranges) - 1)
        loss_sum(model, rows[start:stop]).backward()
        reduce.end(position)
    reduce.finish()
    return gradients(model)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("name", SPLITS)
def test_the_sum_over_ranks_equals_one_process(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    split = SPLITS[name]
    model = make_model(dtype)
    loss_sum(model, make_rows(dtype)).backward()
    expected = gradients(model)
    results = run_ranks(len(split), lambda rank: summed_on_rank(split, rank, dtype))
    largest = max(abs(value) for value in expected)
    for result in results:
        assert result == results[0]
        difference = max(abs(ours - theirs) for ours, theirs in zip(result, expected, strict=True))
        assert difference <= tolerance * largest


def run_out_of_memory(gradient: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("planted")


@pytest.mark.slow
def test_a_rank_that_fails_in_the_middle_of_backward_does_not_hang_the_others() -> None:
    def work(rank: int) -> list[float]:
        model = make_model(torch.float64)
        reduce = GradientSum(trainable(model), bucket_bytes=100)
        if rank == 1:
            next(iter(model.parameters())).register_hook(run_out_of_memory)
        try:
            reduce.begin(is_last=True)
            loss_sum(model, make_rows(torch.float64)).backward()
        except torch.OutOfMemoryError:
            pass
        reduce.finish()
        return gradients(model)

    one, other = run_ranks(2, work)
    assert one == other


@pytest.mark.slow
def test_parameters_that_nobody_used_get_a_zero_gradient_on_one_process_and_on_two() -> None:
    def work(rank: int) -> list[float]:
        model = make_model(torch.float32)
        spare = nn.Parameter(torch.ones(2))
        reduce = GradientSum([*trainable(model), spare])
        reduce.begin(is_last=True)
        loss_sum(model, make_rows(torch.float32)).backward()
        reduce.finish()
        assert spare.grad is not None
        return [float(value) for value in spare.grad]

    assert work(0) == [0.0, 0.0]
    assert run_ranks(2, work) == [[0.0, 0.0]] * 2


def train_ordered(rank: int, world_size: int, num_steps: int) -> str:
    """100 AdamW steps of four micro-batches each, dealt out over the ranks; a digest of the
    weights.
    """
    model = make_model(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    reduce = OrderedGradientSum(trainable(model), 4)
    for step in range(num_steps):
        rows = torch.randn(4, 6, 4, generator=torch.Generator().manual_seed(step))
        for micro_batch in range(rank, 4, world_size):
            loss_sum(model, rows[micro_batch]).backward()
            reduce.end(micro_batch)
        reduce.finish()
        optimizer.step()
        optimizer.zero_grad()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


@pytest.mark.slow
def test_ordered_sums_are_bitwise_equal_on_one_two_and_four_ranks_over_100_adamw_steps() -> None:
    alone = train_ordered(0, 1, 100)
    assert train_ordered(0, 1, 99) != alone
    for world_size in (2, 4):
        results = run_ranks(
            world_size, partial(train_ordered, world_size=world_size, num_steps=100)
        )
        assert set(results) == {alone}
