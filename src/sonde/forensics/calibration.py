"""Calibrate scores: how often verdicts with a given score were right, by family, on the tuning half of benchmarks/diagnosis.py.

`benchmarks/diagnosis.py --fit` prints how often a first cause with a given score was right. The tables follow its
output for 931 verdicts (all 28 trainings of the tuning half, in part), rounded down where a band has few of them; the
report half checks them. Confidence is interpolated linearly between the points.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

Points = Sequence[tuple[float, float]]

TABLES: Final[Mapping[str, Points]] = {
    "text": ((0.0, 0.0), (0.5, 0.36), (0.9, 0.87), (1.0, 0.97)),
    "pair": ((0.0, 0.0), (0.5, 0.3), (0.75, 0.48), (0.9, 0.68), (0.97, 0.9), (1.0, 0.95)),
    "sample": ((0.0, 0.0), (0.3, 0.3), (0.5, 0.45), (0.7, 0.55), (1.0, 0.62)),
    "state": ((0.0, 0.0), (0.5, 0.4), (0.93, 0.92), (1.0, 0.97)),
    "setting": ((0.0, 0.0), (0.5, 0.45), (0.8, 0.75), (0.93, 0.92), (1.0, 0.97)),
    "machine": ((0.0, 0.0), (0.5, 0.45), (0.93, 0.92), (1.0, 0.97)),
    "none": ((0.0, 0.0), (0.5, 0.45), (0.7, 0.66), (0.8, 0.82), (0.9, 0.92), (1.0, 0.95)),
}
"""For each family, scores and the fraction of right verdicts, both increasing."""


def confidence_of(family: str, score: float) -> float:
    """Return the calibrated confidence for a score of a family."""
    points = TABLES[family]
    for (low, below), (high, above) in pairwise(points):
        if score <= high:
            return below + (above - below) * max(score - low, 0.0) / (high - low)
    return points[-1][1]
