"""One update on one process and on many: the same numbers, and the same decisions."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from rank_group import run_ranks
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sonde.errors import SettingError
from sonde.train.gradients import (
    DdpSum,
    GradientSum,
    GradientSync,
    OrderedGradientSum,
    ShardedSum,
    trainable,
)
from sonde.train.settings import TrainerSettings
from sonde.train.step import StepResult, UpdateStep
from sonde.train.task import StepOutput

# The rows of each micro-batch of an update, dealt out to ranks in turn: unequal tokens, an empty
# one among them.
MICRO_BATCHES = [5, 1, 0, 3]


class Regression:
    """A task whose "tokens" are rows. `fault` may spoil one rank's forward."""

    def __init__(self, dtype: torch.dtype, fault: Callable[[Tensor], Tensor] | None = None) -> None:
        torch.manual_seed(1)
        self.network: nn.Module = nn.Sequential(
            nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2)
        ).to(dtype)
        self.fault = fault

    @property
    def model(self) -> nn.Module:
        return self.network

    def compute(self, batch: Tensor) -> StepOutput:
        losses = self.network(batch).square().sum(1)
        if self.fault is not None:
            losses = self.fault(losses)
        return StepOutput(loss_sum=losses.sum(), weight=len(batch), sample_losses=losses.detach())


def batches(update: int, dtype: torch.dtype) -> list[Tensor]:
    rows = torch.randn(
        sum(MICRO_BATCHES), 4, generator=torch.Generator().manual_seed(update), dtype=torch.float64
    )
    return list(rows.to(dtype).split(MICRO_BATCHES))


def make_sync(kind: str, task: Regression) -> GradientSync:
    if kind == "ddp":
        task.network = DistributedDataParallel(task.network)
        return DdpSum(task.network)
    if kind == "fsdp":
        for layer in (task.network.get_submodule("0"), task.network.get_submodule("3")):
            fully_shard(layer)
        fully_shard(task.network)
        return ShardedSum(task.network)
    if kind == "ordered":
        return OrderedGradientSum(trainable(task.model), len(MICRO_BATCHES))
    return GradientSum(trainable(task.model), bucket_bytes=64)


def train(kind: str, rank: int, world_size: int, dtype: torch.dtype) -> list[Any]:
    """Three clipped SGD updates; losses, norms and weights."""
    task = Regression(dtype)
    sync = make_sync(kind, task)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.5)
    step = UpdateStep(task, optimizer, sync, TrainerSettings(seed=3, clip_norm=0.5))
    results = [
        step.run(update, list(enumerate(batches(update, dtype)))[rank::world_size])
        for update in range(3)
    ]
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in task.model.parameters()]
    return [
        [result.loss for result in results],
        [result.grad_norm for result in results],
        [result.weight for result in results],
        torch.cat([weight.detach().flatten() for weight in weights]).tolist(),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    ("kind", "world_size"),
    [("sum", 2), ("sum", 4), ("ddp", 2), ("ddp", 4), ("fsdp", 2), ("fsdp", 4), ("ordered", 2)],
)
def test_ranks_with_unequal_tokens_equal_one_process(
    kind: str, world_size: int, dtype: torch.dtype, tolerance: float
) -> None:
    alone = train("sum", 0, 1, dtype)
    for result in run_ranks(world_size, lambda rank: train(kind, rank, world_size, dtype)):
        for ours, expected in zip(result, alone, strict=True):
            assert ours == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.mark.slow
def test_ordered_updates_are_bitwise_equal_on_one_two_and_four_ranks() -> None:
    alone = train("ordered", 0, 1, torch.float32)
    for world_size in (2, 4):
        work = partial(train, "ordered", world_size=world_size, dtype=torch.float32)
        for result in run_ranks(world_size, work):
            assert result == alone


def test_the_rate_applies_to_the_mean_so_a_repeated_batch_changes_nothing() -> None:
    def trained(times: int) -> Tensor:
        task = Regression(torch.float64)
        task.network.eval()  # no dropout, so that the rows are comparable
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.5)
        step = UpdateStep(task, optimizer, GradientSum(trainable(task.model)), TrainerSettings())
        rows = torch.cat(batches(0, torch.float64) * times)
        step.run(0, [(0, rows)])
        return torch.cat([p.detach().flatten() for p in task.model.parameters()])

    torch.testing.assert_close(trained(1), trained(3), rtol=1e-12, atol=1e-12)


def test_accumulation_divides_once_by_the_total_weight() -> None:
    def gradient(parts: list[int]) -> Tensor:
        task = Regression(torch.float64)
        task.network.eval()  # no dropout, so that the parts are comparable
        step = UpdateStep(
            task,
            torch.optim.SGD(task.model.parameters(), lr=0.0),
            GradientSum(trainable(task.model)),
            TrainerSettings(),
        )
        rows = torch.cat(batches(0, torch.float64)).split(parts)
        step.run(0, list(enumerate(rows)))
        return torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None])

    torch.testing.assert_close(gradient([9]), gradient([1, 5, 3]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_backward_that_starts_from_the_mean_gives_the_gradients_of_the_sum_divided(
    dtype: torch.dtype, tolerance: float
) -> None:
    def gradients(sync: Callable[[Regression], GradientSync]) -> tuple[StepResult, list[Tensor]]:
        task = Regression(dtype)
        step = UpdateStep(
            task, torch.optim.SGD(task.model.parameters(), lr=0.0), sync(task), TrainerSettings()
        )
        result = step.run(0, [(0, batches(0, dtype)[0])])
        return result, [p.grad for p in task.model.parameters() if p.grad is not None]

    early, ours = gradients(lambda task: GradientSum(trainable(task.model)))
    late, expected = gradients(lambda task: OrderedGradientSum(trainable(task.model), 1))
    assert (early.mean_factor, late.mean_factor) == (1.0, 1 / 5)
    assert early.grad_norm == pytest.approx(late.grad_norm, rel=tolerance)
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("change", "is_early"),
    [
        ({}, True),
        ({"weight": torch.tensor(5.0)}, True),
        ({"weight": torch.tensor(5, device="meta")}, False),
        ({"weight": 0}, False),
        ({"weight": math.nan}, False),
        ({"loss_sum": torch.ones((), dtype=torch.bfloat16, requires_grad=True)}, False),
    ],
)
def test_backward_starts_from_the_mean_only_where_the_weight_is_known_and_exact(
    change: dict[str, Any], is_early: bool
) -> None:
    task = Regression(torch.float32)
    step = UpdateStep(
        task,
        torch.optim.SGD(task.model.parameters(), lr=0.1),
        GradientSum(trainable(task.model)),
        TrainerSettings(),
    )
    step._backward(replace(task.compute(batches(0, torch.float32)[0]), **change), is_whole=True)
    assert step._is_divided == is_early


def one_update(
    fault: Callable[[Tensor], Tensor] | None, **settings: Any
) -> tuple[StepResult, bool, UpdateStep]:
    """The result of one update, and whether the weights moved."""
    task = Regression(torch.float32, fault)
    before = [p.detach().clone() for p in task.model.parameters()]
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    step = UpdateStep(
        task, optimizer, GradientSum(trainable(task.model)), TrainerSettings(**settings)
    )
    result = step.run(0, [(0, batches(0, torch.float32)[0])])
    moved = any(not torch.equal(a, b) for a, b in zip(before, task.model.parameters(), strict=True))
    return result, moved, step


def run_out_of_memory(losses: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("planted")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (run_out_of_memory, "out of memory on 1 ranks"),
        (lambda losses: losses * math.nan, "gradient norm is nan"),
    ],
)
def test_a_fault_on_one_rank_skips_the_update_on_all(
    fault: Callable[[Tensor], Tensor], said: str
) -> None:
    def work(rank: int) -> list[Any]:
        result, moved, _ = one_update(fault if rank == 1 else None)
        return [result.skipped, moved]

    for skipped, moved in run_ranks(2, work):
        assert said in skipped
        assert not moved


def test_the_global_norm_is_reported_before_clipping_and_clipped_after() -> None:
    result, moved, step = one_update(None, clip_norm=1e-3)
    assert moved
    assert result.grad_norm is not None
    assert result.grad_norm > 1e-3
    clipped = torch.cat([p.grad.flatten() for p in step._parameters if p.grad is not None]).norm()
    assert float(clipped) == pytest.approx(1e-3, rel=1e-3)


def test_no_target_tokens_is_a_skipped_update() -> None:
    task = Regression(torch.float32)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    step = UpdateStep(task, optimizer, GradientSum(trainable(task.model)), TrainerSettings())
    result = step.run(0, [])
    assert result.skipped == "no target tokens"
    assert math.isnan(result.loss)


def test_dropout_follows_from_seed_update_and_micro_batch_alone() -> None:
    def loss(update: int, number: int, seed: int = 1) -> float:
        task = Regression(torch.float64)
        torch.rand(17)  # what was drawn before must not matter
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.0)
        step = UpdateStep(
            task, optimizer, GradientSum(trainable(task.model)), TrainerSettings(seed=seed)
        )
        return step.run(update, [(number, batches(0, torch.float64)[0])]).loss

    assert loss(4, 2) == loss(4, 2)
    assert len({loss(4, 2), loss(5, 2), loss(4, 3), loss(4, 2, seed=2)}) == 4


def test_bfloat16_autocast_trains_float32_weights() -> None:
    result, moved, _ = one_update(None, precision="bfloat16")
    assert moved
    assert result.skipped is None


def test_float16_halves_its_scale_when_gradients_overflow() -> None:
    result, moved, step = one_update(lambda losses: losses * math.inf, precision="float16")
    assert (moved, step.scale.value) == (False, 2.0**15)
    assert result.skipped is not None


@pytest.mark.parametrize("settings", [{"clip_norm": 0.0}, {"precision": "int8"}])
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        TrainerSettings(**settings)
