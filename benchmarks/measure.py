"""What every benchmark needs: CPU time of the best of several turns, work in a process of its own,
a Markdown table.
"""

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def best_cpu_seconds(
    contenders: Mapping[str, Callable[[], object]], *, num_turns: int
) -> dict[str, float]:
    """CPU seconds of each contender's fastest turn. They take turns, so that a noisy minute hits
    all of them.
    """
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(num_turns):
        for name, work in contenders.items():
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    return best


def in_child(work: Callable[..., object], *arguments: object) -> "Cost":
    """What `work(*arguments)` costs in a fresh process, which must be able to import it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (work, arguments))


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The rows under the column names, ready to be pasted."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _measured(work: Callable[..., object], arguments: tuple[Any, ...]) -> "Cost":
    wall = time.perf_counter()
    cpu = time.process_time()
    result = work(*arguments)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    return Cost(result=result, wall_seconds=wall, cpu_seconds=cpu, peak_megabytes=peak_megabytes())


def peak_megabytes() -> float:
    """The most memory this process ever held, by its own account (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a piece of work gave and took."""

    result: Any
    wall_seconds: float
    cpu_seconds: float
    peak_megabytes: float
    """Of the whole process, the interpreter and its imports included."""
