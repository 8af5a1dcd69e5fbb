"""What a score is worth: about how often verdicts with such a score were right, family by family, on the tuning half of benchmarks/diagnosis.py.

The tables are set by hand, with caution, after some hundred verdicts of rules that have changed since; the report half checks them. Between the points of a table confidence goes in straight lines. `benchmarks/diagnosis.py --fit` prints the tables anew.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

Points = Sequence[tuple[float, float]]

TABLES: Final[Mapping[str, Points]] = {
    "text": ((0.0, 0.0), (0.4, 0.45), (0.6, 0.6), (0.75, 0.68), (0.88, 0.75), (0.95, 0.87), (0.985, 0.95), (1.0, 0.97)),
    "pair": ((0.0, 0.0), (0.5, 0.4), (0.75, 0.6), (0.9, 0.7), (0.97, 0.9), (1.0, 0.95)),
    "sample": ((0.0, 0.0), (0.3, 0.35), (0.5, 0.52), (0.7, 0.65), (1.0, 0.88)),
    "state": ((0.0, 0.0), (0.5, 0.4), (0.93, 0.92), (1.0, 0.97)),
    "setting": ((0.0, 0.0), (0.5, 0.45), (0.8, 0.75), (0.93, 0.92), (1.0, 0.97)),
    "machine": ((0.0, 0.0), (0.5, 0.45), (0.93, 0.92), (1.0, 0.97)),
    "none": ((0.0, 0.0), (0.5, 0.45), (0.7, 0.66), (0.8, 0.82), (0.9, 0.92), (1.0, 0.95)),
}
"""By family: scores and the share of right verdicts, both rising."""


def confidence_of(family: str, score: float) -> float:
    """The confidence that a score of a family stands for."""
    points = TABLES[family]
    for (low, below), (high, above) in pairwise(points):
        if score <= high:
            return below + (above - below) * max(score - low, 0.0) / (high - low)
    return points[-1][1]
