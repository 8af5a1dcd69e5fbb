"""What a score is worth: how often verdicts with such a score were right, family by family, on the tuning half of benchmarks/diagnosis.py.

Between the points of a table confidence goes in straight lines. `benchmarks/diagnosis.py --fit` prints the tables anew.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

Points = Sequence[tuple[float, float]]

TABLES: Final[Mapping[str, Points]] = {
    "text": ((0.0, 0.0), (1.0, 0.97)),
    "pair": ((0.0, 0.0), (1.0, 0.97)),
    "sample": ((0.0, 0.0), (1.0, 0.97)),
    "state": ((0.0, 0.0), (1.0, 0.98)),
    "setting": ((0.0, 0.0), (1.0, 0.98)),
    "machine": ((0.0, 0.0), (1.0, 0.98)),
    "none": ((0.0, 0.0), (1.0, 0.98)),
}
"""By family: scores and the share of right verdicts, both rising."""


def confidence_of(family: str, score: float) -> float:
    """The confidence that a score of a family stands for."""
    points = TABLES[family]
    for (low, below), (high, above) in pairwise(points):
        if score <= high:
            return below + (above - below) * max(score - low, 0.0) / (high - low)
    return points[-1][1]
