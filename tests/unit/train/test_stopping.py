"""Stop conditions: which wins, what is refused, what is remembered."""

import math
from dataclasses import asdict
from typing import Any

import pytest

from sonde.errors import SettingError
from sonde.train.stopping import StopState, StopWhen

START: dict[str, Any] = {"num_updates": 0, "num_epochs": 0, "lr": 1.0}


def observed(stop: StopWhen, *values: float | None) -> StopState:
    state = StopState()
    for value in values:
        stop.observe(state, value)
    return state


def reason(stop: StopWhen, *values: float | None, **where: Any) -> str:
    return stop.reason(observed(stop, *values), **(START | where)) or ""


@pytest.mark.parametrize(
    ("settings", "before", "after", "name"),
    [
        ({"max_updates": 10}, {"num_updates": 9}, {"num_updates": 10}, "max_updates"),
        ({"max_epochs": 2}, {"num_epochs": 1}, {"num_epochs": 2}, "max_epochs"),
        ({"min_lr": 1e-5}, {"lr": 2e-5}, {"lr": 1e-5}, "min_lr"),
    ],
)
def test_each_condition_is_met_exactly_at_its_limit_and_named(
    settings: dict[str, Any], before: dict[str, Any], after: dict[str, Any], name: str
) -> None:
    stop = StopWhen(**settings)
    assert reason(stop, **before) == ""
    assert reason(stop, **after).startswith(f"{name}: ")


def test_patience_counts_evaluations_without_improvement() -> None:
    stop = StopWhen(patience=2)
    assert reason(stop, 3.0, 2.0, 2.5) == ""
    assert reason(stop, 3.0, 2.0, 2.5, 2.1).startswith("patience: 2 evaluations")
    assert reason(stop, 3.0, 2.5, 2.6, 2.4, 2.5) == ""


def test_a_tie_is_no_improvement() -> None:
    assert reason(StopWhen(patience=1), 2.0, 2.0).startswith("patience")


def test_no_evaluation_is_not_counted() -> None:
    assert reason(StopWhen(patience=1), 2.0, None, None) == ""


def test_patience_of_zero_or_less_is_off() -> None:
    assert reason(StopWhen(patience=0, max_updates=5), 1.0, 2.0, 3.0, num_updates=4) == ""


def test_nan_is_never_an_improvement() -> None:
    state = observed(StopWhen(patience=2), math.nan, 2.0, math.nan)
    assert (state.best, state.num_evaluations_since_best) == (2.0, 1)


def test_more_is_better_when_asked() -> None:
    stop = StopWhen(patience=1, mode="max", metric="bleu", target=30.0)
    assert reason(stop, 20.0, 25.0) == ""
    assert reason(stop, 20.0, 30.0) == "target: bleu reached 30"
    assert reason(stop, 20.0, 19.0).startswith("patience")


def test_the_first_condition_in_the_fixed_order_wins() -> None:
    stop = StopWhen(max_updates=1, max_epochs=1, max_hours=1, patience=1)
    assert reason(stop, 1.0, 1.0, num_updates=1, num_epochs=1).startswith("max_updates")


def test_state_survives_a_resume() -> None:
    stop = StopWhen(patience=3)
    state = observed(stop, 2.0, 3.0)
    again = StopState(**asdict(state))
    stop.observe(again, 2.5)
    stop.observe(again, 2.5)
    assert (stop.reason(again, **START) or "").startswith("patience: 3")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "no stop condition"),
        ({"patience": 0}, "no stop condition"),
        ({"max_updates": -1}, "no stop condition"),
        ({"max_epochs": 0, "max_hours": 0.0, "min_lr": -1}, "no stop condition"),
        ({"max_updates": -7}, "max_updates"),
        ({"max_hours": math.nan}, "max_hours"),
        ({"min_lr": -1e-9}, "min_lr"),
        ({"max_updates": 1, "mode": "up"}, "mode"),
        ({"target": math.inf}, "target"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_construction(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingError, match=named):
        StopWhen(**settings)


def test_zero_and_minus_one_turn_a_condition_off_as_in_fairseq() -> None:
    stop = StopWhen(max_epochs=0, max_updates=5, max_hours=0, min_lr=-1.0)
    assert (stop.max_epochs, stop.max_hours, stop.min_lr) == (None, None, None)
    assert StopWhen(max_epochs=3, max_updates=0).reason(StopState(), 10**6, 0, 1.0) is None


def test_nan_at_every_evaluation_ends_patience_in_words() -> None:
    stop = StopWhen(patience=2)
    state = StopState()
    for _ in range(2):
        stop.observe(state, math.nan)
    assert stop.reason(state, **START) == "patience: 2 evaluations without a better loss"


def test_a_metric_that_no_evaluation_gives_is_refused() -> None:
    StopWhen(max_updates=1, metric="bleu").check_evaluation({"loss": 1.0})
    for settings in ({"patience": 2}, {"target": 30.0}):
        with pytest.raises(SettingError, match="'bleu', which the evaluation does not give"):
            StopWhen(metric="bleu", **settings).check_evaluation({"loss": 1.0, "weight": 3.0})


def test_a_minimum_rate_above_the_peak_is_refused() -> None:
    with pytest.raises(SettingError, match="not below the peak"):
        StopWhen(min_lr=1e-3).check_peak_lr(1e-3)
    StopWhen(min_lr=1e-3).check_peak_lr(2e-3)
