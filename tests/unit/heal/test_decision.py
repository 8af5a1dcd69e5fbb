"""From verdicts to acts: what is blamed decides, the budget holds, and what came back is not
believed a second time.
"""

import math
from dataclasses import replace
from typing import Any

import pytest

from sonde.data.skip_list import SkipList
from sonde.errors import SettingError
from sonde.forensics.verdict import NOTHING, UNKNOWN, Cause, Suspect, Verdict
from sonde.heal.decision import Act, Call, Heal, Situation, back_before, decide

CALL = Call(kind="spike", step=132, first_step=120, value=9.0, baseline=3.0)
SCENE = Situation(checkpoint=110, rate=0.01, bad_rate=0.01, batch=SkipList({"train": [1, 2, 3, 4]}))
HEAL = Heal(max_times=2)


def verdict(
    blames: str, *, samples: tuple[int, ...] = (), cause: str = "garbled_text", **others: Any
) -> Verdict:
    suspects = tuple(Suspect(dataset="train", sample=sample) for sample in samples)
    values: dict[str, Any] = {
        "cause": cause,
        "title": "It is so.",
        "confidence": 0.9,
        "advice": ("Do it.",),
    }
    first = Cause(**values | {"blames": blames, "suspects": suspects} | others)
    return Verdict(run_id="r", step=120, causes=(first,), seconds=3.0)


def test_blamed_samples_are_skipped_and_nothing_else() -> None:
    act = decide(verdict("samples", samples=(2,)), CALL, SCENE, (), HEAL)
    assert (act.kind, dict(act.skip), act.checkpoint) == ("skip samples", {"train": [2]}, 110)
    assert (act.num_skipped, act.num_repeated, act.cause, act.seconds) == (
        1,
        22,
        "garbled_text",
        3.0,
    )


@pytest.mark.parametrize("blames", ["tensor", "machine"])
def test_a_fault_of_state_or_machine_goes_back_without_a_skip(blames: str) -> None:
    act = decide(verdict(blames, cause="corrupted_weights"), CALL, SCENE, (), HEAL)
    assert (act.kind, act.skip) == ("go back", {})


def test_what_came_back_after_going_back_costs_its_batch() -> None:
    first = decide(verdict("machine"), CALL, SCENE, (), HEAL)
    again = decide(verdict("machine"), replace(CALL, first_step=121), SCENE, [first], HEAL)
    assert again.kind == "skip batch"
    assert "came back" in again.why


def test_what_comes_again_in_the_same_place_goes_back_further() -> None:
    past = [decide(verdict("samples", samples=(2,)), CALL, SCENE, (), HEAL)]
    again = replace(CALL, first_step=140, step=152)
    assert back_before(None, CALL, (), HEAL) == 120
    assert back_before(verdict("tensor", bad_checkpoint=90), CALL, (), HEAL) == 90
    assert back_before(verdict("samples", samples=(9,), confidence=0.6), again, past, HEAL) == 110
    assert back_before(verdict("samples", samples=(9,)), again, past, HEAL) == 140
    assert back_before(None, replace(CALL, first_step=300, step=312), past, HEAL) == 300


def test_another_event_later_is_not_the_same_one() -> None:
    first = decide(verdict("machine"), CALL, SCENE, (), HEAL)
    later = replace(CALL, first_step=500, step=512)
    assert (
        decide(verdict("machine"), later, SCENE._replace(checkpoint=490), [first], HEAL).kind
        == "go back"
    )


def test_samples_that_are_left_out_already_are_not_blamed_twice() -> None:
    first = decide(verdict("samples", samples=(2,)), CALL, SCENE, (), HEAL)
    assert decide(verdict("samples", samples=(2,)), CALL, SCENE, [first], HEAL).kind == "skip batch"
    other = decide(verdict("samples", samples=(2, 3)), CALL, SCENE, [first], HEAL)
    assert (other.kind, dict(other.skip)) == ("skip samples", {"train": [3]})


@pytest.mark.parametrize(
    "found",
    [
        None,
        verdict("nothing", cause=UNKNOWN),
        verdict("nothing", cause=NOTHING),
        verdict("setting", cause="learning_rate", confidence=0.4),
    ],
)
def test_what_is_not_known_costs_no_data_unless_it_comes_back(found: Verdict | None) -> None:
    first = decide(found, CALL, SCENE, (), HEAL)
    assert (first.kind, dict(first.skip)) == ("go back", {})
    again = decide(found, CALL, SCENE, [first], HEAL)
    assert (again.kind, dict(again.skip)) == ("skip batch", {"train": [1, 2, 3, 4]})


def test_samples_blamed_on_a_guess_are_not_left_out() -> None:
    unsure = verdict("samples", samples=(2,), confidence=0.69)
    assert decide(unsure, CALL, SCENE, (), HEAL).kind == "go back"
    sure = verdict("samples", samples=(2,), confidence=0.7)
    assert decide(sure, CALL, SCENE, (), HEAL).kind == "skip samples"


def test_a_batch_that_was_not_recorded_cannot_be_skipped() -> None:
    first = decide(None, CALL, SCENE, (), HEAL)
    again = decide(None, CALL, SCENE._replace(batch=SkipList()), [first], HEAL)
    assert again.kind == "stop"


def test_a_setting_ends_the_run_with_the_advice() -> None:
    act = decide(verdict("setting", cause="learning_rate", setting="lr"), CALL, SCENE, (), HEAL)
    assert (act.kind, act.advice, act.num_repeated) == ("stop", ("Do it.",), 0)


def test_a_rate_is_halved_for_some_updates_where_that_is_allowed() -> None:
    heal = Heal(max_times=2, halve_rate=50)
    act = decide(verdict("setting", cause="learning_rate", setting="lr"), CALL, SCENE, (), heal)
    assert (act.kind, act.rate, act.rate_until) == ("lower rate", 0.005, 160)
    jumped = decide(
        verdict("setting", cause="changed_settings", setting="lr"),
        CALL,
        SCENE._replace(bad_rate=0.3),
        (),
        heal,
    )
    assert jumped.rate == 0.01
    dropout = decide(
        verdict("setting", cause="changed_settings", setting="dropout"), CALL, SCENE, (), heal
    )
    assert dropout.kind == "stop"


def test_the_budget_holds_whatever_the_verdict_says() -> None:
    past = [
        decide(verdict("samples", samples=(sample,)), CALL, SCENE, (), HEAL) for sample in (1, 2)
    ]
    blamed = verdict("samples", samples=(3,))
    for heal, spent in (
        (HEAL, "2 times"),
        (Heal(max_times=9, max_skipped=2), "2 samples"),
        (Heal(max_times=9, max_repeated=50), "50 steps"),
    ):
        act = decide(blamed, CALL, SCENE, past, heal)
        assert (act.kind, spent in act.why, act.skip) == ("stop", True, {})
    ended = [Act(kind="stop", call=CALL, why="")] * 5
    assert decide(blamed, CALL, SCENE, ended, HEAL).kind == "skip samples"


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(SettingError, match="max_times is 0\ncause: Expected `int` >= 1"):
        Heal(max_times=0)
    with pytest.raises(SettingError, match="patience is 0\ncause: Expected `int` >= 1"):
        Heal(max_times=1, patience=0)
    with pytest.raises(SettingError, match="halve_rate is 0\ncause: Expected `int` >= 1"):
        Heal(max_times=1, halve_rate=0)
    with pytest.raises(SettingError, match="diagnosis_seconds is nan"):
        Heal(max_times=1, diagnosis_seconds=math.nan)
