"""Logging a scalar into three nested levels: ours, torchmetrics' `MeanMetric` and a dict of sums
written by hand.

    python benchmarks/metrics.py              about 20 seconds

CPU time per logged value, best of several turns that the contenders take one after the other,
reading all three levels at the end included. Values differ from call to call, as losses do.
"""

import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torchmetrics.aggregation import MeanMetric

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import best_cpu_seconds, markdown_table

from sonde import metrics

_NUM_FLOATS: Final = 10_000
_NUM_TENSORS: Final = 1_000
_NUM_TURNS: Final = 7
_WEIGHT: Final = 37


def main() -> None:
    torch.set_num_threads(1)
    generator = random.Random(1)
    floats = [generator.uniform(1, 10) for _ in range(_NUM_FLOATS)]
    tensors = [torch.tensor(value) for value in floats[:_NUM_TENSORS]]
    _print_comparison(floats)
    _print_tensors(tensors)
    _print_levels(floats[:_NUM_TENSORS])


def _print_comparison(floats: list[float]) -> None:
    contenders: dict[str, Callable[[], object]] = {
        "sonde": partial(_ours, floats),
        "dict of sums": partial(_dict_of_sums, floats),
    }
    best = best_cpu_seconds(contenders, num_turns=_NUM_TURNS)
    few = floats[: len(floats) // 10]
    peer = best_cpu_seconds({"torchmetrics MeanMetric": partial(_torchmetrics, few)}, num_turns=3)
    seconds = {name: value / len(floats) for name, value in best.items()}
    seconds |= {name: value / len(few) for name, value in peer.items()}
    ours = seconds["sonde"]
    goals = {
        "sonde": "",
        "dict of sums": "sonde at most 3x slower",
        "torchmetrics MeanMetric": "sonde 5x faster",
    }
    rows = [
        [
            name,
            f"{value * 1e6:.2f}",
            f"{value / ours:.1f}",
            goals[name],
            "" if name == "sonde" else _verdict(name, value / ours),
        ]
        for name, value in seconds.items()
    ]
    print(
        markdown_table(
            ["a float into 3 levels", "CPU µs per value", "times sonde", "goal", "met"], rows
        ),
        "\n",
    )


def _verdict(name: str, ratio: float) -> str:
    gate = 5.0 if "torchmetrics" in name else 1 / 3
    return "yes" if ratio >= gate else "NO"


def _print_tensors(tensors: list[torch.Tensor]) -> None:
    contenders: dict[str, Callable[[], object]] = {
        "sonde": partial(_ours, tensors),
        "torchmetrics MeanMetric": partial(_torchmetrics, tensors),
    }
    best = best_cpu_seconds(contenders, num_turns=3)
    rows = [
        [name, f"{value / len(tensors) * 1e6:.2f}", f"{value / best['sonde']:.1f}"]
        for name, value in best.items()
    ]
    print(
        markdown_table(["a CPU tensor into 3 levels", "CPU µs per value", "times sonde"], rows),
        "\n",
    )


def _print_levels(floats: list[float]) -> None:
    work: dict[str, Callable[[], object]] = {
        "enter and leave a named level": partial(_enter, "inner", floats, is_logging=False),
        "the same, logging one float": partial(_enter, "inner", floats, is_logging=True),
        "enter and leave an anonymous level": partial(_enter, None, floats, is_logging=False),
        "the same, logging one float ": partial(_enter, None, floats, is_logging=True),
    }
    best = best_cpu_seconds(work, num_turns=_NUM_TURNS)
    rows = [[name, f"{value / len(floats) * 1e6:.2f}"] for name, value in best.items()]
    print(markdown_table(["levels, inside default and train", "CPU µs"], rows))


def _ours(values: list[Any]) -> list[float]:
    metrics.reset()
    with metrics.aggregate("train"), metrics.aggregate("inner"):
        log_scalar = metrics.log_scalar
        for value in values:
            log_scalar("loss", value, _WEIGHT)
    return [metrics.get_smoothed_value(name, "loss") for name in ("default", "train", "inner")]


def _torchmetrics(values: list[Any]) -> list[float]:
    levels = [MeanMetric() for _ in range(3)]
    for value in values:
        for level in levels:
            level.update(value, _WEIGHT)
    return [float(level.compute()) for level in levels]


def _dict_of_sums(values: list[float]) -> list[float]:
    levels: list[dict[str, list[float]]] = [{}, {}, {}]

    def log(key: str, value: float, weight: float = 1) -> None:
        for level in levels:
            sums = level.get(key)
            if sums is None:
                level[key] = [value * weight, weight]
            else:
                sums[0] += value * weight
                sums[1] += weight

    for value in values:
        log("loss", value, _WEIGHT)
    return [level["loss"][0] / level["loss"][1] for level in levels]


def _enter(name: str | None, values: list[float], *, is_logging: bool) -> None:
    metrics.reset()
    with metrics.aggregate("train"):
        for value in values:
            with metrics.aggregate(name):
                if is_logging:
                    metrics.log_scalar("loss", value)


if __name__ == "__main__":
    main()
