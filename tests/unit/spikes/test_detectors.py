"""The simple rules: what they call bad, and that bad numbers never enter their history."""

import json
import math

import pytest

from sonde.errors import SettingError
from sonde.spikes.detectors import (
    GOOD,
    NONFINITE,
    SPIKE,
    RelativeRule,
    Rule,
    SigmaRule,
    ThresholdRule,
)
from sonde.spikes.robust_rule import RobustRule

RULES: list[Rule] = [ThresholdRule(above=5.0), RelativeRule(), SigmaRule(), RobustRule()]


def history(number: int = 200) -> list[float]:
    return [2.5 + 0.01 * ((7 * step) % 11 - 5) for step in range(number)]


@pytest.mark.parametrize("rule", RULES)
def test_a_great_leap_is_a_spike_and_what_follows_is_good(rule: Rule) -> None:
    state = rule.start()
    assert {rule.score(state, value).kind for value in history()} == {GOOD}
    assert rule.score(state, 9.0).kind == SPIKE
    assert rule.score(state, 2.5).kind == GOOD


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_told_at_once_and_poisons_nothing(rule: Rule, value: float) -> None:
    state = rule.start()
    assert rule.score(state, value).kind == NONFINITE
    for good in history():
        rule.score(state, good)
    before = rule.pack(state)
    assert rule.score(state, value).kind == NONFINITE
    assert rule.pack(state) == before
    assert rule.score(state, 2.5).kind == GOOD


@pytest.mark.parametrize("rule", RULES)
def test_the_greatest_numbers_overflow_nothing_and_the_rule_learns_on(rule: Rule) -> None:
    state = rule.start()
    for step in range(400):
        score = rule.score(state, (-1) ** step * 1.7e308)
        assert not math.isnan(score.z)
        assert math.isinf(score.baseline) is False
    packed = json.dumps(rule.pack(state), allow_nan=False)
    state = rule.unpack(json.loads(packed))
    for step in range(1500):  # the lowest slow level is remembered for a thousand
        rule.score(state, 2 + 0.01 * (step % 7))
    assert [rule.score(state, value).kind for value in (2.03, 60.0, 1.7e308, 2.03)] == [
        GOOD,
        SPIKE,
        SPIKE,
        GOOD,
    ]


@pytest.mark.parametrize("rule", RULES)
def test_spikes_stay_out_of_the_history_so_that_aftershocks_are_seen(rule: Rule) -> None:
    state = rule.start()
    for good in history():
        rule.score(state, good)
    kinds = [rule.score(state, value).kind for value in (9.0, 2.5, 6.0, 6.0, 2.51)]
    assert kinds == [SPIKE, GOOD, SPIKE, SPIKE, GOOD]


@pytest.mark.parametrize("rule", RULES)
def test_a_state_goes_through_plain_data_and_judges_on_alike(rule: Rule) -> None:
    state = rule.start()
    for good in history(150):
        rule.score(state, good)
    copy = rule.unpack(rule.pack(state))
    rest = [*history(60), 2.58, 4.0, math.nan, *history(40)]
    assert [rule.score(state, value) for value in rest] == [
        rule.score(copy, value) for value in rest
    ]


def test_a_score_says_what_was_expected_and_how_far_off_it_was() -> None:
    rule = RelativeRule(factor=2.0)
    state = rule.start()
    for _ in range(20):
        rule.score(state, 3.0)
    assert rule.score(state, 12.0) == (SPIKE, 3.0, 4.0)
    sigma = SigmaRule(num_sigmas=6)
    state = sigma.start()
    for step in range(100):
        sigma.score(state, 2.0 + 0.1 * (-1) ** step)
    score = sigma.score(state, 3.0)
    assert score.kind == SPIKE
    assert score.baseline == pytest.approx(2.0)
    assert score.z == pytest.approx(10, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (RelativeRule, {"factor": 1.0}),
        (RelativeRule, {"min_history": 100}),
        (SigmaRule, {"num_sigmas": 0}),
        (RobustRule, {"min_z": 9, "max_z": 8}),
        (RobustRule, {"risk": 0.5}),
    ],
)
def test_settings_that_cannot_work_are_refused(kind: type, arguments: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        kind(**arguments)
