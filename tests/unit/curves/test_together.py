"""Runs told together: those that share an order of data are found by their residuals, and an event
that recurs among them is the data's.
"""

import math
import random

from sonde.curves.judgement import judge
from sonde.curves.loss_curves import LossCurve, loss_curve
from sonde.curves.points import Point
from sonde.curves.together import correlation, find_recurring, groups_of, is_copy

NUM_STEPS = 400


def run_of(order: int, weights: int, spikes: dict[int, float] | None = None) -> LossCurve:
    """A run whose noise is mostly that of its data, and a little its own."""
    curve = loss_curve(
        [
            Point(step, None, {"loss": _loss(order, weights, step) + (spikes or {}).get(step, 0.0)})
            for step in range(1, NUM_STEPS + 1)
        ]
    )
    assert curve is not None
    return curve


def _loss(order: int, weights: int, step: int) -> float:
    of_data = random.Random(f"data {order} {step}").gauss(0, 0.05)
    of_weights = random.Random(f"weights {weights} {step}").gauss(0, 0.02)
    return 2.5 + weights / 10 + 6 * math.exp(-step / 60) + of_data + of_weights


def test_runs_over_the_same_data_rise_and_fall_together_and_others_do_not() -> None:
    first = run_of(order=1, weights=1)
    assert correlation(first, run_of(order=1, weights=2)) > 0.7
    assert abs(correlation(first, run_of(order=2, weights=2))) < 0.3


def test_a_copy_counts_once() -> None:
    first = run_of(order=1, weights=1)
    assert is_copy(first, run_of(order=1, weights=1))
    assert not is_copy(first, run_of(order=1, weights=2))
    curves = [
        first,
        run_of(order=1, weights=1),
        run_of(order=1, weights=2),
        run_of(order=2, weights=3),
    ]
    groups = groups_of(curves)
    assert [(group.members, group.copies) for group in groups] == [((0, 2), (1,)), ((3,), ())]


def test_an_event_at_the_same_step_under_other_weights_is_the_datas() -> None:
    curves = [
        run_of(order=1, weights=1, spikes={300: 4.0, 350: 4.0}),
        run_of(order=1, weights=2, spikes={300: 4.0}),
        run_of(order=1, weights=3, spikes={300: 4.0}),
        run_of(order=2, weights=4, spikes={300: 4.0}),
    ]
    findings = [judge(curve) for curve in curves]
    told = find_recurring(curves, findings, groups_of(curves))
    shared, alone = told[0]
    assert (shared.first_step, shared.num_runs, shared.of_runs) == (300, 3, 3)
    assert shared.probably[0].cause == "data"
    assert (alone.first_step, alone.num_runs, alone.of_runs) == (350, 1, 3)
    assert alone.probably[0].cause == "batch"
    (elsewhere,) = told[3]
    assert (elsewhere.num_runs, elsewhere.probably[0].cause) == (None, "batch")
