"""Two gloo ranks against one process that logs the values of both."""

import math
import random
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rank_group import run_ranks

from sonde import metrics
from sonde.errors import SettingError

pytestmark = pytest.mark.slow

KINDS = {
    kind.kind: kind for kind in (metrics.Sum, metrics.Maximum, metrics.Minimum, metrics.Quantile)
}

Entry = tuple[str, str, float, float, bool]
"""key, kind of meter, value, weight, whether it is logged as a tensor"""


def _log(entries: Sequence[Entry]) -> metrics.Aggregator:
    with metrics.aggregate(new_root=True) as aggregator:
        for key, kind, number, weight, as_tensor in entries:
            value = (
                torch.tensor(number, dtype=torch.float64, requires_grad=True)
                if as_tensor
                else number
            )
            if kind == "average":
                metrics.log_scalar(key, value, weight)
            else:
                metrics.log_custom(KINDS[kind], key, value)
    return aggregator


def _entries_of_two_ranks() -> list[list[Entry]]:
    """Common keys and keys of one rank only, weight zero, NaN, sizes that cancel, tensors and
    numbers.
    """
    generator = random.Random(4)
    plan: list[list[Entry]] = [[], []]
    for rank in range(2):
        for step in range(300):
            value = generator.uniform(-1, 1) * 10.0 ** generator.randint(-12, 12)
            plan[rank] += [
                ("loss", "average", value, generator.choice([0, 1, 7, 0.3]), step % 2 == 0),
                ("tokens", "sum", value, 1, step % 3 == 0),
                ("high", "maximum", value, 1, False),
                ("low", "minimum", value, 1, step % 5 == 0),
                ("median", "quantile", value, 1, step % 7 == 0),
            ]
        plan[rank] += [
            ("lr", "average", 0.1 + rank, 0, False),
            ("loss", "average", math.nan, 1, rank == 1),
        ]
    plan[0] += [
        ("first_only", "average", 1 / 3, 3, False),
        ("some_weight", "average", 2.0, 4, False),
    ]
    plan[1] += [("second_only", "sum", 0.1, 1, True), ("some_weight", "average", 5.0, 0, False)]
    return plan


def _reduce(plan: Sequence[Sequence[Entry]], rank: int) -> dict[str, Any]:
    aggregator = _log(plan[rank])
    before = aggregator.state_dict()
    reduced = metrics.over_ranks(aggregator)
    return {
        "state": reduced.state_dict(),
        "shown": reduced.get_smoothed_values(),
        "unchanged": aggregator.state_dict() == before,
    }


def test_two_ranks_equal_one_process() -> None:
    plan = _entries_of_two_ranks()
    single = _log([*plan[0], *plan[1]])
    first, second = run_ranks(2, lambda rank: _reduce(plan, rank))
    assert first["shown"] == pytest.approx(single.get_smoothed_values(), rel=1e-6)
    assert first["state"] == second["state"]
    assert first["unchanged"]
    assert second["unchanged"]
    assert (first["shown"]["lr"], first["shown"]["some_weight"]) == (1.1, 2.0)
    assert first["shown"]["loss_nonfinite"] == 2


def test_a_rank_without_any_data_takes_part() -> None:
    plan: list[list[Entry]] = [
        [("loss", "average", 1.5, 2, False), ("p", "quantile", 3.0, 1, False)],
        [],
    ]
    for result in run_ranks(2, lambda rank: _reduce(plan, rank)):
        assert result["shown"] == {"loss": 1.5, "p": 3.0}


def test_no_data_on_any_rank_is_no_data() -> None:
    assert [result["shown"] for result in run_ranks(2, lambda rank: _reduce([[], []], rank))] == [
        {},
        {},
    ]


def test_a_key_that_was_reset_everywhere_stays_without_data() -> None:
    def work(rank: int) -> dict[str, float]:
        with metrics.aggregate("train", new_root=True) as train:
            for key, make in KINDS.items():
                metrics.log_custom(make, key, rank)
            metrics.log_scalar("loss", rank)
            metrics.log_speed("speed", 1)
        metrics.reset_meters("train")
        return metrics.over_ranks(train).get_smoothed_values()

    assert run_ranks(2, work) == [{}, {}]


def test_derived_values_are_computed_from_the_reduced_meters_where_they_are_known() -> None:
    def work(rank: int) -> dict[str, float]:
        with metrics.aggregate("train", new_root=True) as train:
            metrics.log_scalar("loss", 2.0 * rank, weight=1 + 2 * rank)
            if rank == 0:
                metrics.log_derived("ppl", lambda meters: 2 ** meters["loss"].value)
        return metrics.over_ranks(train).get_smoothed_values()

    assert run_ranks(2, work) == [{"loss": 1.5, "ppl": 2**1.5}, {"loss": 1.5}]


def test_times_add_up_and_rates_are_counts_over_the_longest_time() -> None:
    def work(rank: int) -> list[float]:
        aggregator = metrics.Aggregator()
        now = [0.0]
        with mock.patch("sonde.metrics.meters.time.perf_counter", side_effect=lambda: now[0]):
            rate = metrics.Rate()
            watch = metrics.Stopwatch()
            aggregator.add_meter("tokens/s", rate)
            aggregator.add_meter("wait", watch)
            now[0] = 2.0 + rank
            rate.update(30 * (rank + 1))
            watch.update(1.0 + rank, weight=1)
            return list(metrics.over_ranks(aggregator).get_smoothed_values().values())

    assert run_ranks(2, work) == [[30.0, 1.5]] * 2


def test_ranks_that_use_one_key_for_two_kinds_all_get_an_error() -> None:
    def work(rank: int) -> str:
        aggregator = metrics.Aggregator()
        aggregator.add_meter("x", metrics.Quantile() if rank else metrics.Sum())
        try:
            metrics.over_ranks(aggregator)
        except SettingError as error:
            return error.message
        return ""

    for message in run_ranks(2, work):
        assert "'x' is of kind sum on one rank, and of kind quantile" in message


def test_a_part_of_the_ranks_can_reduce_among_themselves() -> None:
    def work(rank: int) -> dict[str, float]:
        pair = dist.new_group([0, 2])
        aggregator = _log([("loss", "average", float(rank), 1, False)])
        return metrics.over_ranks(aggregator, group=pair).get_smoothed_values() if rank != 1 else {}

    assert run_ranks(3, work) == [{"loss": 1.0}, {}, {"loss": 1.0}]
