"""The tables of benchmarks/heal.py, from its outcomes."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.measure import markdown_table

LAST: Final = 650
NUM_SEEDS: Final = 5
FAULTS: Final = (
    "garbled",
    "duplicated",
    "non-finite",
    "corrupted weight",
    "learning-rate jump",
    "no fault",
)
WAYS: Final = ("nothing", "clip", "olmo", "lightning", "heal")
UNTOUCHED: Final = "heal, rate untouched"


def ways_of(fault: str) -> Sequence[str]:
    """The ways to deal with a fault."""
    return (*WAYS, UNTOUCHED) if fault == "learning-rate jump" else WAYS


def print_tables(outcomes: list[dict[str, Any]]) -> None:
    """Final losses and updates, by fault and way."""
    clean = {
        outcome["seed"]: outcome
        for outcome in outcomes
        if (outcome["fault"], outcome["way"]) == ("no fault", "heal")
    }
    if not clean:
        return
    measure = [clean[seed]["loss"] for seed in sorted(clean)[:10]]
    worst = max(measure)
    print(
        f"\n{len(measure)} clean seeds: {min(measure):.4f} to {worst:.4f}; {len(clean)} clean"
        " runs, ",
        end="",
    )
    print(f"{sum(bool(outcome['acts']) for outcome in clean.values())} of them acted upon\n")
    rows = []
    seeds = sorted(clean)[:NUM_SEEDS]
    for fault in FAULTS:
        for way in ways_of(fault):
            found = [
                outcome
                for outcome in outcomes
                if (outcome["fault"], outcome["way"]) == (fault, way) and outcome["seed"] in seeds
            ]
            if found:
                rows.append(_row(fault, way, found, worst))
    columns = (
        "fault",
        "way",
        "final loss, median",
        "worst",
        "no worse than clean",
        "updates, median",
        "most",
        "acts",
    )
    print(markdown_table(columns, rows))
    ours = [
        outcome
        for outcome in outcomes
        if outcome["way"] == "heal" and outcome["fault"] != "no fault"
    ]
    if ours:
        good = sum(outcome["loss"] <= worst for outcome in ours)
        most = max(outcome["updates"] for outcome in ours) / LAST - 1
        print(
            f"\nours: {good} of {len(ours)} no worse than the worst clean seed; at most {most:.1%}"
            " more updates"
        )


def _row(fault: str, way: str, found: list[dict[str, Any]], worst: float) -> list[str]:
    losses = [outcome["loss"] if math.isfinite(outcome["loss"]) else math.inf for outcome in found]
    updates = [outcome["updates"] for outcome in found]
    acts = [act[0] for outcome in found for act in outcome["acts"]]
    counted = ", ".join(f"{acts.count(kind)} × {kind}" for kind in dict.fromkeys(acts))
    good = f"{sum(loss <= worst for loss in losses)} of {len(losses)}"
    sentences = [
        f"{value:.3f}" if math.isfinite(value) else "none"
        for value in (statistics.median(losses), max(losses))
    ]
    return [
        fault,
        way,
        *sentences,
        good,
        str(int(statistics.median(updates))),
        str(max(updates)),
        counted,
    ]
