"""Two gloo ranks against one process that logs the values of both."""

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde import metrics

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

# Replays each plan, reduces the aggregator and reports.
WORKER = """
import json, sys
import torch.distributed as dist
from sonde import metrics

rank, rendezvous, plans = int(sys.argv[1]), sys.argv[2], json.load(open(sys.argv[3]))
sys.path.insert(0, sys.argv[4])
from test_metrics_ranks import replay

dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
calls = []
true_all_reduce = dist.all_reduce

def counted(*args, **kwargs):
    calls.append(1)
    return true_all_reduce(*args, **kwargs)

dist.all_reduce = counted
results = []
for plan in plans:
    calls.clear()
    aggregator = replay(plan[rank], is_first=rank == 0)
    before = aggregator.state_dict()
    result = {"error": None}
    try:
        reduced = metrics.over_ranks(aggregator)
        result.update(state=reduced.state_dict(), shown=reduced.get_smoothed_values())
    except ValueError as error:
        result["error"] = type(error).__name__
    results.append({**result, "all_reduces": len(calls), "unchanged": before == aggregator.state_dict()})
print(json.dumps(results))
dist.destroy_process_group()
"""

Entry = tuple[str, str, Any, float, bool]
"""key, kind of meter, value, weight, whether it is logged as a tensor"""


def replay(entries: list[Entry], *, is_first: bool) -> metrics.Aggregator:
    """What one rank logs."""
    import torch

    kinds = {k.kind: k for k in (metrics.Sum, metrics.Maximum, metrics.Minimum, metrics.Quantile)}
    with metrics.aggregate(new_root=True) as aggregator:
        for key, kind, value, weight, as_tensor in entries:
            number = float(value)
            logged = torch.tensor(number, dtype=torch.float64, requires_grad=True) if as_tensor else number
            if kind == "average":
                metrics.log_scalar(key, logged, weight)
            else:
                metrics.log_custom(kinds[kind], key, logged)
        if is_first:
            metrics.log_derived("double", lambda meters: 2 * meters["loss"].value)
    return aggregator


def _launch(plans: list[list[list[Entry]]], directory: Path) -> list[list[dict[str, Any]]]:
    """For each plan, the result of either rank."""
    plan_file = directory / "plans.json"
    plan_file.write_text(json.dumps(plans))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    here = str(Path(__file__).parent)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(directory / "rendezvous"), str(plan_file), here],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for rank in range(2)
    ]
    results = []
    for worker in workers:
        out, err = worker.communicate(timeout=100)
        assert worker.returncode == 0, err
        results.append(json.loads(out))
    return [list(pair) for pair in zip(*results, strict=True)]


def _random_plan() -> list[list[Entry]]:
    """Two ranks: common keys, keys of one rank only, weight zero, NaN, cancelling sizes, tensors and numbers."""
    generator = random.Random(4)
    plan: list[list[Entry]] = [[], []]
    for rank in range(2):
        for step in range(300):
            value = generator.uniform(-1, 1) * 10.0 ** generator.randint(-12, 12)
            plan[rank].append(("loss", "average", value, generator.choice([0, 1, 7, 0.3]), step % 2 == 0))
            plan[rank].append(("tokens", "sum", value, 1, step % 3 == 0))
            plan[rank].append(("high", "maximum", value, 1, False))
            plan[rank].append(("low", "minimum", value, 1, step % 5 == 0))
            plan[rank].append(("median", "quantile", value, 1, step % 7 == 0))
        plan[rank].append(("lr", "average", 0.1 + rank, 0, False))
        plan[rank].append(("loss", "average", "nan", 1, rank == 1))
    plan[0].append(("first_only", "average", 1 / 3, 3, False))
    plan[1].append(("second_only", "sum", 0.1, 1, True))
    plan[1].append(("no_weight_here", "average", 5.0, 0, False))
    plan[0].append(("no_weight_here", "average", 2.0, 4, False))
    return plan


def _by_key(state: dict[str, Any]) -> dict[str, Any]:
    return {row["key"]: row for row in state["meters"]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """One launch for all tests: starting two processes with torch is what costs."""
    plans: list[list[list[Entry]]] = [
        _random_plan(),
        [[("loss", "average", 1.5, 2, False)], []],
        [[("x", "average", 1.0, 1, False)], [("x", "sum", 1.0, 1, False)]],
    ]
    return _launch(plans, tmp_path_factory.mktemp("ranks"))


def test_two_ranks_equal_one_process_to_the_last_bit_with_one_all_reduce(results: list[list[dict[str, Any]]]) -> None:
    plan = _random_plan()
    first, second = results[0]
    single = metrics.over_ranks(replay([*plan[0], *plan[1]], is_first=True))
    assert _by_key(first["state"]) == _by_key(single.state_dict())
    assert first["shown"] == single.get_smoothed_values()
    assert first["state"] == second["state"]
    assert first["all_reduces"] == second["all_reduces"] == 1
    assert first["unchanged"]
    assert second["unchanged"]


def test_the_later_rank_wins_where_only_the_latest_value_counts(results: list[list[dict[str, Any]]]) -> None:
    for result in results[0]:
        assert result["shown"]["lr"] == 1.1
        assert result["shown"]["no_weight_here"] == 2.0


def test_nan_on_both_ranks_is_counted_on_both(results: list[list[dict[str, Any]]]) -> None:
    for result in results[0]:
        assert result["shown"]["loss_nonfinite"] == 2
        assert math.isfinite(result["shown"]["loss"])


def test_a_derived_value_is_computed_from_the_reduced_meters(results: list[list[dict[str, Any]]]) -> None:
    first, second = results[0]
    assert first["shown"]["double"] == 2 * first["shown"]["loss"]
    assert "double" not in second["shown"]


def test_a_rank_without_any_data_takes_part(results: list[list[dict[str, Any]]]) -> None:
    full, empty = results[1]
    assert full["shown"] == {"loss": 1.5, "double": 3.0}
    assert empty["shown"] == {"loss": 1.5}
    assert full["error"] is empty["error"] is None


def test_ranks_that_use_one_key_for_two_kinds_all_get_an_error(results: list[list[dict[str, Any]]]) -> None:
    assert [result["error"] for result in results[2]] == ["SettingError", "SettingError"]
